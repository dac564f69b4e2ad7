"""Handing locks over, without the waiting: the lock type and the options of an adopted lease, and many at once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Generic

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests.adopt import Adoption, AdoptMany
from wheel_lock.errors import InvalidHandoff, LockLost, LocksNotAdopted, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types import HANDED_OVER
from wheel_lock.lock_types.base import LockType
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.bulk import AnyLock, of_another_context
from wheel_lock.options import LockOptions, lock_name
from wheel_lock.protocol.handoff import Handoff

NewLock = Callable[[LockType, str | bytes, LockOptions], AnyLock]

PART = 500  # texts that are written, or read, before other tasks have their turn, or adoptions on their way at a time


def adopted_type(handoff: Handoff) -> LockType:
    """Return the lock type to adopt. Raises InvalidHandoff if it is unknown, or does not fit the fence."""
    lock_type = HANDED_OVER.get(handoff.lock_type)
    if lock_type is None:
        raise InvalidHandoff(f"Locks of the kind {handoff.lock_type!r:.40} cannot be handed over", handoff.name)
    if lock_type.fenced != (handoff.fence is not None):
        raise InvalidHandoff(
            f"A lock of the kind {handoff.lock_type!r} that is handed over has {'a' if lock_type.fenced else 'no'} fence",
            handoff.name,
        )
    return lock_type


def adopted_options(handoff: Handoff, thread_local: bool) -> LockOptions:
    """Return the options of the adopting lease. Raises InvalidHandoff if ``max_hold`` is over."""
    left_s = handoff.hold_left_s(time.time())
    if left_s is not None and left_s <= 0:
        raise InvalidHandoff(f"The lock {quoted(handoff.name)} may not be held any longer", handoff.name)
    return handoff.options(max_hold=left_s, thread_local=thread_local)


def leases_to_export(
    engine: Engine, locks: Iterable[BaseLock | None]
) -> dict[str | bytes, tuple[BaseLock, Lease | None]]:
    """Return by name each of ``locks`` with its lease, or with None if it is lost. All are checked before any is exported.

    Args:
        engine: The engine of the context.
        locks: The locks; None is skipped.

    Raises:
        LockNotHeld, WrongThread: The caller cannot export one of them.
        WheelLockError: One of them is of a kind that cannot be handed over, or has a token that the caller has chosen.
        TypeError: One of them is not a lock.
        ValueError: Two of them have one name, or one belongs to another context.
    """
    by_name: dict[str | bytes, BaseLock] = {}
    for lock in locks:
        if lock is None:
            continue
        if not isinstance(lock, BaseLock):
            raise TypeError(f"only locks can be exported, not {type(lock).__name__}")
        if lock._engine is not engine:
            raise of_another_context(lock)
        if by_name.setdefault(lock.name, lock) is not lock:
            raise ValueError(f"two of the locks to export have the name {quoted(lock.name)}")
    leases: dict[str | bytes, tuple[BaseLock, Lease | None]] = {}
    for name, lock in by_name.items():
        try:
            leases[name] = lock, lock._to_change("export")
        except LockLost:
            leases[name] = lock, None
    return leases


class BulkAdoption(Generic[AnyLock]):
    """An adoption of many locks, on the caller's side.

    Args:
        engine: The engine of the locks.
        texts: The results of exports; None is skipped.
        new_lock: Returns the lock object for a lock type, a name and options.
        thread_local: As for locks.

    Raises:
        TypeError: ``texts`` is a str or bytes.
    """

    def __init__(
        self,
        engine: Engine,
        texts: Iterable[str | None],
        new_lock: NewLock[AnyLock],
        thread_local: bool,
    ) -> None:
        if isinstance(texts, (str, bytes)):
            raise TypeError(f"texts must be several texts, not one {type(texts).__name__}")
        self._engine = engine
        self._texts = [text for text in texts if text is not None]
        self._new_lock = new_lock
        self._thread_local = thread_local
        self._handoffs: dict[bytes, Handoff] = {}
        self._locks: dict[str | bytes, tuple[AnyLock, Lease] | None] = {}
        self._many = AdoptMany(engine.leases)

    def read(self) -> Iterator[None]:
        """Read the texts part by part.

        Raises:
            InvalidHandoff: A text is malformed, or has been changed, or two are of one lock; nothing has been sent.
        """
        prefix = self._engine.options.prefix
        for number, text in enumerate(self._texts, 1):
            handoff = Handoff.from_text(text, prefix)
            adopted_type(handoff)
            if self._handoffs.setdefault(lock_name(handoff.name, prefix), handoff) != handoff:
                raise InvalidHandoff(f"Two of the texts are of the lock {quoted(handoff.name)}", handoff.name)
            if number % PART == 0:
                yield

    def parts(self) -> Iterator[Callable[[Future[None]], object]]:
        """Make the locks part by part; yield what adopts each, and completes a future when the next may follow.

        That of the last part is completed when all are done.
        """
        left = iter(self._handoffs.items())
        more = True
        while more:
            part = list(itertools.islice(left, PART))
            more = len(part) == PART
            adoptions = [adoption for key, handoff in part if (adoption := self._adoption(key, handoff)) is not None]
            yield partial(self._many.begin, adoptions, PART - 1 if more else 0)

    def _adoption(self, key: bytes, handoff: Handoff) -> Adoption | None:
        """Make the lock, and return what is to be adopted; None if its ``max_hold`` is over."""
        self._locks[handoff.name] = None
        try:
            options = adopted_options(handoff, self._thread_local)
        except InvalidHandoff:
            return None
        lock = self._new_lock(adopted_type(handoff), handoff.name, options)
        lease = lock._new_lease(key)
        self._locks[handoff.name] = lock, lease
        return lease, options, handoff

    def give_up(self) -> None:
        """Undo all of it, for a caller that waits no more. From any thread."""
        self._engine.post_if_open(self._many.give_up)

    def outcome(self) -> dict[str | bytes, AnyLock | None]:
        """Return the lock of each name, or None if it is gone.

        Raises:
            LocksNotAdopted: Some could not be adopted for another reason; it has the result.
        """
        outcome: dict[str | bytes, AnyLock | None] = dict.fromkeys(self._locks)
        errors: dict[str | bytes, Exception] = {}
        for name, made in self._locks.items():
            if made is None:
                continue
            lock, lease = made
            error = self._many.errors.get(lease)
            if error is None:
                lock._take_adopted(lease)
                outcome[name] = lock
            elif not isinstance(error, LockLost):
                errors[name] = error
        if errors:
            raise LocksNotAdopted(errors, outcome)
        return outcome
