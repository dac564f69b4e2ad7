"""Bulk acquires and releases, without the waiting."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, end_quietly
from wheel_lock.engine.interfaces import LockEngine
from wheel_lock.engine.requests.bulk_operations import AcquireMany
from wheel_lock.errors import LockLost, LocksLost, LossReason
from wheel_lock.lease import NOBODY, Extras, Lease, Owner, State
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.locks.acquired import AcquiredLocks, AcquiredValues, AnyLock, Name, releasable
from wheel_lock.locks.base import BaseLock, call_site
from wheel_lock.options import LockOptions, lock_name, seconds
from wheel_lock.protocol.resp import lease_args
from wheel_lock.protocol.tokens import new_tokens

_BEGUN, _LAST, _ENDED = object(), object(), object()
_PART = 4000  # names, or locks, per part


class BulkAcquire(Generic[Name, AnyLock]):
    """A bulk acquire, on the caller's side.

    Args:
        engine: The engine of the locks.
        names: Their names; all of them are validated before the first request.
        options: Their options.
        new_lock: Returns the lock object of a name.
        all_or_nothing: True if none is acquired unless all are.
        future: Completed when the requests of all names are.
        limit: Time limit of the whole call in seconds; None for none.

    Raises:
        ValueError: A name or the limit is invalid.
        TypeError: ``names`` is a str or bytes.
    """

    def __init__(
        self,
        engine: Engine,
        names: Iterable[Name],
        options: LockOptions,
        new_lock: Callable[[Name], AnyLock],
        all_or_nothing: bool,
        future: Future[None],
        limit: float | None,
    ) -> None:
        if isinstance(names, (str, bytes)):  # whose items would be names of one letter each
            raise TypeError(f"names must be several names, not one {type(names).__name__}")
        self._engine = engine
        self._limit_s = None if limit is None else seconds("blocking_timeout", limit)
        self._options = options
        self._new_lock = new_lock
        self._all_or_nothing = all_or_nothing
        self._call_site = call_site() if engine.options.track_acquisitions else None
        self._locks: AcquiredLocks[Name, AnyLock] = AcquiredLocks(engine, new_lock)
        for name in names:
            self._locks.put(name, lock_name(name))
        self._bulk = AcquireMany(engine.leases, options, future, all_or_nothing)

    def submit(self) -> Iterator[None]:
        """Make the leases and submit them part by part, so that the server works on one while the next is made."""
        engine, options, locks, stable = self._engine, self._options, self._locks, self._engine.router.stable
        group = engine.group(b"", EXCLUSIVE, options)
        engine.submit(partial(self._bulk.begin, len(locks), self._limit_s))
        tokens = new_tokens()
        owner, extras = self._terms()
        leases: list[Lease] = []
        for name, key in locks.stored():
            if not stable:
                group = engine.group(key, EXCLUSIVE, options)
            lease = Lease(name, lease_args(key, next(tokens)), group, owner)
            lease.extras = extras
            locks.put(name, lease)
            leases.append(lease)
            if len(leases) == _PART:
                engine.submit(partial(self._bulk.add, leases))
                yield
                leases = []
        if leases:
            engine.submit(partial(self._bulk.add, leases))
            yield
        engine.submit(self._bulk.seal)

    def _terms(self) -> tuple[Owner, Extras]:
        """Return the owner of the leases, and what they have in common besides."""
        for name in self._locks:
            lock = self._new_lock(name)
            owner = lock._caller() if self._options.thread_local else NOBODY
            return owner, Extras(lock._loss_callback(), self._call_site)
        return NOBODY, Extras()

    def give_up(self) -> None:
        """Undo all of it, for a caller that waits no more. From any thread."""
        self._locks.kept = False
        self._engine.post_if_open(self._bulk.give_up)

    def outcome(self) -> dict[Name, AnyLock | None]:
        """Return the lock of each name, or None if that was not acquired."""
        locks, refused = self._locks, False
        for name, lease in locks.stored():
            if lease.state is State.REFUSED:
                refused = True
                locks.put(name, None)
        if refused and self._all_or_nothing:
            return {name: None for name in locks}  # noqa: C420  # a C function would keep renewals waiting
        locks.kept = True
        return locks


def raise_if_any(lost: dict[str | bytes, LossReason], engine: LockEngine) -> None:
    """Raise LocksLost if ``lost`` holds any reasons."""
    if lost:
        end_quietly(engine.exiting)
        raise LocksLost(lost)


class GivenLocks:
    """The locks that a caller gives to ``release_many``. They may come from an iterator, and all are read first.

    They are read part by part, because one call of a C function that reads them all would keep renewals waiting. Each part
    is between two marks. They show after an interruption whether that struck while the part was read, in the caller's code.

    Args:
        locks: The argument of the caller.
    """

    __slots__ = ("_left", "_mapping", "_parts")

    def __init__(self, locks: Iterable[BaseLock | None]) -> None:
        self._mapping = locks._mapping if isinstance(locks, AcquiredValues) else None
        items = locks if self._mapping is None else self._mapping.stored_values()
        self._left = itertools.chain(items, (_LAST,))
        self._parts: list[list[Any]] = []

    @property
    def broken(self) -> bool:
        """True if reading has failed, or was interrupted, in the caller's code."""
        return any(part and part[-1] is not _ENDED for part in self._parts[-1:])

    def read(self) -> Iterator[Any]:
        """Read what has not been read yet; return all: locks, held leases without a lock object, and anything else."""
        parts = self._parts
        while not (parts and parts[-1] and parts[-1][-2] is _LAST):
            part: list[Any] = []
            parts.append(part)
            part.extend(itertools.chain((_BEGUN,), itertools.islice(self._left, _PART), (_ENDED,)))
        return itertools.chain.from_iterable(map(self._content, parts))

    def _content(self, part: list[Any]) -> list[Any]:
        items, mapping = part[1:-1], self._mapping
        if items and items[-1] is _LAST:
            items.pop()
        return items if mapping is None else [item if releasable(item) else mapping._made(item) for item in items]


def let_go_of(
    engine: Engine, locks: Iterable[BaseLock | None], given: list[GivenLocks], leases: Sequence[Lease] | None
) -> None:
    """Complete an interrupted release of ``locks`` without waiting. Nothing is released if reading them was interrupted.

    Args:
        engine: The engine of the locks.
        locks: The argument of the caller.
        given: What has been read of it; empty before that has begun.
        leases: The leases to release; None if they were not determined yet.
    """
    if leases is None:
        if not given:
            given.append(GivenLocks(locks))
        if given[0].broken:
            return
        leases = []
        for lock in given[0].read():
            lease = lock if releasable(lock) else None
            if isinstance(lock, BaseLock) and lock.in_bulk:
                lease = lock._own_lease()
            if lease is not None:
                leases.append(lease)
    engine.release_unawaited(partial(engine.release_many, leases))


def leases_to_release(
    locks: Iterable[BaseLock | None], given: list[GivenLocks]
) -> tuple[list[Lease], dict[str | bytes, LossReason], TypeError | None]:
    """Return the leases of ``locks`` to release, the reasons of those that are lost, and an error to raise instead.

    ``given`` receives what is read of ``locks``, for :func:`let_go_of`.

    The error is for a lock that is reentrant, or an object that is not a lock. It is returned, because a TypeError that a
    signal's handler raises here must not be mistaken for it.

    Raises:
        LockNotHeld, WrongThread: The caller cannot release one of them; before any I/O.
    """
    leases: list[Lease] = []
    lost: dict[str | bytes, LossReason] = {}
    given.append(GivenLocks(locks))
    for lock in given[0].read():
        if releasable(lock):
            leases.append(lock)
        elif lock is not None:
            if not isinstance(lock, BaseLock):
                return [], {}, TypeError(f"only locks can be released in bulk, not {type(lock).__name__}")
            if not lock.in_bulk:
                text = f"{lock!r} is released by itself, as often as it was acquired, and not in bulk"
                return [], {}, TypeError(text)
            try:
                leases.append(lock._to_change("release"))
            except LockLost as error:
                lost[lock.name] = error.reason
    return leases, lost, None
