"""Many locks at once, apart from the waiting that differs between threads and asyncio."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, end_quietly
from wheel_lock.engine.interfaces import LockEngine
from wheel_lock.engine.requests.bulk_operations import AcquireMany
from wheel_lock.errors import LockLost, LocksLost, LossReason
from wheel_lock.lease import NOBODY, Lease, State
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.locks.base import BaseLock, call_site
from wheel_lock.options import LockOptions, lock_name, seconds
from wheel_lock.protocol.resp import lease_args
from wheel_lock.protocol.tokens import new_tokens

Name = TypeVar("Name", bound=str | bytes)
AnyLock = TypeVar("AnyLock", bound=BaseLock)

_BEGUN, _ENDED = (object(),), (object(),)
_PART = 4000  # names that are handed over at once


class BulkAcquire(Generic[Name, AnyLock]):
    """A bulk acquire, seen from its caller's side.

    Args:
        engine: Whose locks.
        names: Their names; all of them are looked at before the first is asked for.
        options: How they are acquired and kept.
        new_lock: Makes the lock object for a name.
        all_or_nothing: Whether one that another holds means that none is acquired.
        operation: What is completed when all is done.
        limit: How many seconds the whole call may take; None for no such limit.

    Raises:
        ValueError: A name will not do.
        TypeError: They are one text.
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
        if isinstance(names, (str, bytes)):  # which has names of one letter each, as Python sees it
            raise TypeError(f"names must be several names, not one {type(names).__name__}")
        self._engine = engine
        self._limit_s = None if limit is None else seconds("blocking_timeout", limit)
        self._options = options
        self._new_lock = new_lock
        self._all_or_nothing = all_or_nothing
        self._place = call_site() if engine.options.track_acquisitions else None
        self._distinct: Mapping[Name, bytes] = {name: lock_name(name) for name in names}
        self._locks: dict[Name, AnyLock] = {}
        self._bulk = AcquireMany(engine.leases, options, future, all_or_nothing)

    def submit(self) -> Iterator[None]:
        """Make the locks, part by part; the server is at work on one part while the next is made."""
        engine, options = self._engine, self._options
        group = engine.group(b"", EXCLUSIVE, options)
        engine.submit(partial(self._bulk.begin, len(self._distinct), self._limit_s))
        tokens, left = new_tokens(), iter(self._distinct.items())
        owner, on_lost = None, None
        while part := list(itertools.islice(left, _PART)):
            leases: list[Lease] = []
            for name, key in part:
                self._locks[name] = lock = self._new_lock(name)
                if owner is None:
                    owner, on_lost = lock._caller() if options.thread_local else NOBODY, lock._loss_callback()
                if not engine.router.stable:
                    group = engine.group(key, EXCLUSIVE, options)
                lock._lease = lease = Lease(name, lease_args(key, next(tokens)), group, owner, on_lost, self._place)
                leases.append(lease)
            engine.submit(partial(self._bulk.add, leases))
            yield
        engine.submit(self._bulk.seal)

    def give_up(self) -> None:
        """The caller waits no more: undo all of it. From any thread."""
        self._engine.post_if_open(self._bulk.give_up)

    def outcome(self) -> dict[Name, AnyLock | None]:
        """Return the lock of each name, None where it is not acquired."""
        outcome: dict[Name, AnyLock | None] = dict(self._locks)
        for name, lock in self._locks.items():
            lease = lock._lease
            if lease is None or lease.state is State.REFUSED:
                outcome[name] = None
        if self._all_or_nothing and None in outcome.values():
            return dict.fromkeys(outcome)
        return outcome


def raise_if_any(lost: dict[str | bytes, LossReason], engine: LockEngine) -> None:
    """Raise LocksLost where some of an engine's locks were lost."""
    if lost:
        end_quietly(engine.exiting)
        raise LocksLost(lost)


def read_all(locks: Iterable[BaseLock | None], given: list[Any]) -> list[BaseLock | None]:
    """Return ``locks``, read once: of an iterator nothing is left after that.

    Args:
        locks: What a caller has given.
        given: Takes what is read, between two marks: whoever is interrupted sees by it whether this has begun, and ended.
    """
    given.extend(itertools.chain(_BEGUN, locks, _ENDED))
    return given[1:-1]


def let_go_of(
    engine: Engine, locks: Iterable[BaseLock | None], given: list[Any], leases: Iterable[Lease] | None
) -> None:
    """The caller was interrupted while releasing ``locks``: have it done without waiting, but for what was read in part.

    Args:
        engine: Whose locks.
        locks: What the caller has given.
        given: What has been read of that.
        leases: What is to be released, or None where that was not known yet.
    """
    if leases is None:
        if not given:
            read_all(locks, given)
        if given[-1] is not _ENDED[0]:
            return  # it has raised half-way, and nothing is released then
        owned = [lock._own_lease() for lock in given if isinstance(lock, BaseLock) and lock.in_bulk]
        leases = [lease for lease in owned if lease is not None]
    engine.release_unawaited(partial(engine.release_many, leases))


def leases_to_release(
    locks: Iterable[BaseLock | None],
) -> tuple[list[Lease], dict[str | bytes, LossReason], TypeError | None]:
    """Return the leases of ``locks`` that the caller may release, and the reasons of those that are lost.

    The third is None, or the error to raise instead: one of ``locks`` is reentrant, or no lock. It is not raised here,
    because the TypeError of a signal's handler must not be taken for it.

    Raises:
        LockNotHeld, WrongThread: One of them cannot be released by the caller; before any I/O.
    """
    leases: list[Lease] = []
    lost: dict[str | bytes, LossReason] = {}
    for lock in locks:
        if lock is not None:
            if not isinstance(lock, BaseLock):
                return [], {}, TypeError(f"only locks can be released in bulk, not {type(lock).__name__}")
            if not lock.in_bulk:
                return (
                    [],
                    {},
                    TypeError(f"{lock!r} is released by itself, as often as it was acquired, and not in bulk"),
                )
            try:
                leases.append(lock._to_change("release"))
            except LockLost as error:
                lost[lock.name] = error.reason
    return leases, lost, None
