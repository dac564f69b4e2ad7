"""Bulk acquires and releases, without the waiting."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, end_quietly
from wheel_lock.engine.loss_events import HeldBack
from wheel_lock.engine.requests.bulk_operations import AcquireMany
from wheel_lock.engine.waiting.many import AcquireEach
from wheel_lock.errors import LockLost, LocksLost, LossReason
from wheel_lock.lease import NO_OWNER, Extras, Lease, Owner, State
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.locks.base import BaseLock, call_site
from wheel_lock.locks.locks_by_name import LocksByName, as_they_are
from wheel_lock.options import LockOptions, lock_name, plain_name, seconds
from wheel_lock.protocol.resp import lease_args
from wheel_lock.rows import Rows
from wheel_lock.runtime.tokens import new_tokens

Name = TypeVar("Name", bound=str | bytes)
AnyLock = TypeVar("AnyLock", bound=BaseLock)

_BEGUN, _ENDED = (object(),), (object(),)
_PART = 4000  # names per part of a bulk acquire


def distinct_names(engine: Engine, names: Iterable[Name], *, different: bool) -> Mapping[Name, bytes]:
    """Return the key of each name, in the order of the names.

    Args:
        engine: The engine of the locks.
        names: The names; duplicates are ignored.
        different: True if no lock may have two of the names, as text and as bytes: a wait would be for its own lock.

    Raises:
        ValueError: A name is invalid, or two of them are not ``different``.
        TypeError: ``names`` is a str or bytes.
    """
    if isinstance(names, (str, bytes)):  # whose items would be names of one letter each
        raise TypeError(f"names must be several names, not one {type(names).__name__}")
    prefix = engine.options.prefix
    keys = {name if type(name) is str else plain_name(name): lock_name(name, prefix) for name in names}
    first: dict[bytes, Name] = {}
    for name, key in keys.items() if different else ():
        if first.setdefault(key, name) is not name:
            raise ValueError(f"names must be of different locks: {first[key]!r:.80} and {name!r:.80} are one")
    return keys


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
        blocking: True to wait for locks that other owners hold.

    Raises:
        ValueError: A name or the limit is invalid, or two names of a call that waits are of the same lock.
        TypeError: ``names`` is a str or bytes.
    """

    def __init__(
        self,
        engine: Engine,
        names: Iterable[Name],
        options: LockOptions,
        new_lock: Callable[[Any], AnyLock],
        all_or_nothing: bool,
        future: Future[None],
        limit: float | None,
        blocking: bool = False,
    ) -> None:
        self._engine = engine
        self._limit_s = None if limit is None else seconds("blocking_timeout", limit)
        self._options = options
        self._new_lock = new_lock
        self._all_or_nothing = all_or_nothing
        self._call_site = call_site() if engine.options.track_acquisitions else None
        waits = blocking and self._limit_s != 0.0
        self._distinct = distinct_names(engine, names, different=waits)
        self._locks: LocksByName[Name, AnyLock] = LocksByName(engine, new_lock)
        self._rows: list[Rows] = []
        self._owner: Owner = NO_OWNER  # of all leases
        self._bulk = (
            AcquireEach(engine.wait_queues, options, future)
            if waits
            else AcquireMany(engine.leases, options, future, all_or_nothing)
        )

    def submit(self) -> Iterator[None]:
        """Make the locks and submit their leases part by part, so that the server works on one while the next is made."""
        engine, options = self._engine, self._options
        group = engine.group(b"", EXCLUSIVE, options)
        engine.submit(partial(self._bulk.begin, len(self._distinct), self._limit_s))
        tokens, left = new_tokens(engine.token_head), iter(self._distinct.items())
        extras = None
        in_rows = engine.keeps_groups and not engine.options.watch and not isinstance(self._bulk, AcquireEach)
        while part := list(itertools.islice(left, _PART)):
            if extras is None:
                pattern = self._new_lock(part[0][0])
                self._owner = pattern._new_owner()
                if (on_lost := pattern._loss_callback()) is not None:
                    self._bulk.held_back = HeldBack(on_lost)  # nothing is called until the caller has the locks
                extras = Extras(self._bulk.held_back, self._call_site)
            rows = []
            for start in range(0, len(part), engine.options.batch_size):
                names, keys = zip(*part[start : start + engine.options.batch_size], strict=True)
                rows.append(Rows(names, b"".join(map(lease_args, keys, tokens)), group, self._owner, extras))
            self._rows += rows
            if in_rows:
                engine.submit(partial(self._bulk.add_rows, rows))
            else:
                engine.submit(partial(self._bulk.add, list(itertools.chain(*rows))))
            yield
        engine.submit(self._bulk.seal)

    def give_up(self) -> None:
        """Undo all of it, for a caller that waits no more. From any thread."""
        self._engine.post_if_open(self._bulk.give_up)

    def outcome(self) -> dict[Name, AnyLock | None]:
        """Return the lock of each name, or None if that was not acquired."""
        locks, heir, complete = self._locks, self._owner.heir, True
        later: Mapping[Lease, Lease] = self._bulk.granted if isinstance(self._bulk, AcquireEach) else {}
        for rows in self._rows:
            rows.belong_to(heir)
            if not rows.made and heir is NO_OWNER:
                locks.put_rows(rows)
                continue
            for first in rows:
                lease = later.get(first, first)
                if lease.state is State.REFUSED:
                    locks.put(lease.name, None)
                    complete = False
                else:
                    lease.owner = heir
                    lock = self._new_lock(lease.name)
                    lock._lease = lease
                    locks.put(lease.name, lock)
        if self._bulk.refused or (self._all_or_nothing and not complete):
            return dict.fromkeys(self._distinct)
        return locks


def raise_if_any(lost: dict[str | bytes, LossReason], engine: Engine) -> None:
    """Raise LocksLost if ``lost`` holds any reasons."""
    if lost:
        end_quietly(engine.exiting)
        raise LocksLost(lost)


def read_all(engine: Engine, locks: Iterable[BaseLock | None], given: list[Any]) -> list[BaseLock | Rows | None]:
    """Return all of ``locks``, which may be an iterator; rows in place of those of a bulk acquire that are not made.

    Args:
        engine: The engine of the locks.
        locks: The argument of a caller.
        given: Receives the items, between two marks that show an interrupted caller whether this has begun and ended.
    """
    given.extend(itertools.chain(_BEGUN, as_they_are(engine, locks), _ENDED))
    return given[1:-1]


def let_go_of(
    engine: Engine, locks: Iterable[BaseLock | None], given: list[Any], leases: Sequence[Lease] | None
) -> None:
    """Complete an interrupted release of ``locks`` without waiting. Nothing is released if reading them was interrupted.

    Args:
        engine: The engine of the locks.
        locks: The argument of the caller.
        given: The items that have been read of it; see :func:`read_all`.
        leases: The leases to release; None if they were not determined yet.
    """
    if leases is None:
        if not given:
            read_all(engine, locks, given)
        if given[-1] is not _ENDED[0]:
            return
        mine = [lock for lock in given if isinstance(lock, BaseLock) and lock.in_bulk and lock._engine is engine]
        owned = [lock._own_lease() for lock in mine]
        leases = [lease for lease in owned if lease is not None]
        leases += itertools.chain(*[rows for rows in given if isinstance(rows, Rows)])
    engine.release_unawaited(partial(engine.release_many, leases))


def of_another_context(lock: BaseLock) -> ValueError:
    """Return the error for a lock that is given to another context than its own, which does not keep its lease."""
    return ValueError(f"{lock!r} belongs to another context")


def leases_to_release(
    engine: Engine,
    locks: Iterable[BaseLock | Rows | None],
) -> tuple[list[Lease], dict[str | bytes, LossReason], TypeError | ValueError | None]:
    """Return the leases of ``locks`` to release, the reasons of those that are lost, and an error to raise instead.

    The error is for a lock that is reentrant or of another context, or an object that is not a lock. It is returned,
    because an error that a signal's handler raises here must not be mistaken for it.

    Raises:
        LockNotHeld, WrongThread: The caller cannot release one of them; before any I/O.
    """
    leases: list[Lease] = []
    lost: dict[str | bytes, LossReason] = {}
    for lock in locks:
        if isinstance(lock, Rows):
            leases += lock
        elif lock is not None:
            if not isinstance(lock, BaseLock):
                return [], {}, TypeError(f"only locks can be released in bulk, not {type(lock).__name__}")
            if not lock.in_bulk:
                text = f"{lock!r} is released by itself, as often as it was acquired, and not in bulk"
                return [], {}, TypeError(text)
            if lock._engine is not engine:
                return [], {}, of_another_context(lock)
            try:
                leases.append(lock._to_change("release"))
            except LockLost as error:
                lost[lock.name] = error.reason
    return leases, lost, None
