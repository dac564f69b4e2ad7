"""The operations of lock objects and contexts, once for threads and for tasks.

Each operation is a generator that waits by ``yield from`` the ``wait()`` of a future, which blocks a thread and suspends a
task. It is driven by ``sync.call.run`` in a thread, by ``aio.call.run`` in a task.

A thread's wait blocks inside the generator, so an exception of a signal's handler is raised in the same frame, under the
same ``try``, as in a plain function. A driver that blocked by itself would have to throw the exception into the generator,
and the throwing could be interrupted, too. CPython runs no handler between the end of a generator and the return of the
method that drives it. A generator costs a thread 1.5 to 2 us, so sync/lock.py writes out the acquire and the release of a
plain lock, with the same ``try``.

A release must be carried out whatever interrupts it (see runtime/interruptions.py). So an operation that begins one has an
``uninterrupted_start``, and all of it up to the message to the engine lies in a ``try`` that posts that message once more:
to release twice is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from wheel_lock.engine.future import Future
from wheel_lock.engine.requests.adopt import Adopt, adopted_too_late
from wheel_lock.engine.requests.base import refused_by_server
from wheel_lock.errors import (
    HolderChanged,
    LockAlreadyHeld,
    LockNotAcquired,
    LocksNotAdopted,
    LossReason,
    WheelLockError,
    copied,
    quoted,
)
from wheel_lock.holder import Holder
from wheel_lock.lease import Lease
from wheel_lock.lock_types import EXCLUSIVE, READ
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.holders import LockState
from wheel_lock.locks.base import BaseLock, OnLost
from wheel_lock.locks.bulk import (
    AnyLock,
    BulkAcquire,
    Name,
    distinct_names,
    leases_to_release,
    let_go_of,
    raise_if_any,
    read_all,
)
from wheel_lock.locks.callers import RELEASED, CallerFuture, Side
from wheel_lock.locks.handoff import PART, BulkAdoption, adopted_options, adopted_type, leases_to_export
from wheel_lock.locks.multi import BaseMultiLock
from wheel_lock.locks.reentrancy import BaseReadLock, BaseWriteLock
from wheel_lock.options import LockOptions, checked_wait, extension_ms, lock_name, plain_name
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.protocol.resp import lease_args
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.interruptions import insist, uninterrupted_start
from wheel_lock.runtime.timer_threads import MustNotWait

T = TypeVar("T")
Reader = TypeVar("Reader", bound=BaseReadLock)

Steps = Generator[Any, None, T]

_LOOK_S = 0.25  # the longest time by which a refusal comes later because of its look at the holder
_MOST_LOOKS = 64  # names of a multi-lock that are looked at


def ask(side: Side, work: Callable[[Future[T]], object], limit_s: float | None = None) -> Steps[T]:
    """Call ``work(future)`` on the timer's thread, and wait for the future; return its result.

    ``limit_s`` is the time limit in seconds that ``work`` has itself, if it has one.
    """
    future: CallerFuture[T] = side._new_future()
    future.limit(side._engine, limit_s)
    side._engine.submit(partial(work, future))
    yield from future.wait()
    return future.result()


def acquire(
    lock: BaseLock | BaseMultiLock[Any], blocking: bool | None, limit: float | None, token: str | bytes | None = None
) -> Steps[bool]:
    """Acquire a lock, or several as one; return True if that was granted."""
    engine = lock._engine
    granted: CallerFuture[Sequence[Lease] | None] = lock._new_future()
    settled = not (engine.interrupted or engine.unawaited)  # first: releases may end meanwhile
    wait = None
    try:
        wait = lock._new_waiter(blocking, limit, token, granted)
    except LockAlreadyHeld:
        if settled:
            raise
    if wait is None:
        # The lock seems held until the timer's thread has received the release of an interrupted caller, if there is one.
        yield from ask(lock, engine.come_by)
        wait = lock._new_waiter(blocking, limit, token, granted)
    granted.if_undeliverable(wait.give_up)
    leases = None
    try:
        engine.submit(wait.begin)
        yield from granted.wait()
        leases = granted.result()
        if leases is not None:
            lock._take_granted(leases)
        return leases is not None
    except BaseException:
        # An interruption (KeyboardInterrupt, say) must not leave a grant behind. Harmless if there is none.
        lock._give_up(wait, leases)
        raise


@uninterrupted_start
def begin_release(lock: BaseLock, lease: Lease | None = None, *, left: bool = False) -> CallerFuture[None] | None:
    """Begin to release a lock once; return the future to wait for, or None if the caller still holds the lock.

    If a block is ``left``, ``lease`` is that with which it was entered; the caller may hold another one by now.
    """
    try:
        lease = lock._changeable(lease, "release") if left else lock._to_release()
        if lease is None:
            return None
        engine = lock._engine
        if (on_path := engine.direct.claim) and (hold := on_path.get(lease)) is not None:
            direct = hold.release(lock._new_future, RELEASED)
            if direct is not None:
                lock._count_off(lease)
                return direct
        released: CallerFuture[None] = lock._future_class(engine)
        engine.submit(partial(engine.release, lease, released))
        lock._count_off(lease)
        return released
    except WheelLockError:
        raise
    except MustNotWait:
        lock._let_go(lease)
        return RELEASED
    except BaseException:
        insist(lock._let_go, lease)
        raise


@uninterrupted_start
def release(lock: BaseLock, lease: Lease | None = None, *, left: bool = False) -> Steps[bool]:
    """Release a lock once, see ``begin_release``; return True if it is released."""
    released = begin_release(lock, lease, left=left)
    if released is None:
        return False
    yield from released.wait()
    released.result()
    return True


@uninterrupted_start
def release_writer(lock: BaseWriteLock) -> Steps[bool]:
    """Release a writer's lock once. If it is held for reading, too, the caller goes on reading without a gap."""
    swap = None
    try:
        if lock._keeps_reading:
            swapped: CallerFuture[None] = lock._new_future()
            hold, swap = lock._new_swap(swapped)
            lock._stop_writing(hold, swap)
    except WheelLockError:
        if swap is not None:
            raise
        # It was lost in this moment, so it is released as any lost lock is: counted, with the error.
    except BaseException:
        if swap is None:
            insist(lock._let_go, None)
        raise
    if swap is None:
        return (yield from release(lock))
    yield from swapped.wait()
    swapped.result()
    return True


def downgrade(lock: BaseWriteLock, reader_class: Callable[..., Reader]) -> Steps[Reader]:
    """Replace a writer's lease with a reader's; return the lock object that holds the latter."""
    lock._check_downgrade()
    swapped: CallerFuture[None] = lock._new_future()
    hold, swap = lock._new_swap(swapped)
    swapped.if_undeliverable(swap.give_up)
    reader = reader_class(lock._engine, READ, lock.name, lock._options, lock._on_lost)
    try:
        lock._engine.submit(swap.begin)
        yield from swapped.wait()
        swapped.result()
        lock._read_on(hold, swap.new, reader)
        return reader
    except WheelLockError:
        raise
    except BaseException:
        insist(lock._undo_downgrade, hold)
        raise


def extend(lock: BaseLock, additional_time: float, replace_ttl: bool) -> Steps[bool]:
    """Change the time-to-live of a held lease; return True."""
    extension_ms(additional_time, 0.0)  # an invalid time raises first, whether or not a lease is held
    lease = lock._to_change("extend")
    left_s = 0.0 if replace_ttl else max(lease.deadline - lock._engine.timer.clock.now(), 0.0)
    time_ms = extension_ms(additional_time, left_s)
    yield from ask(lock, partial(lock._engine.extend, lease, time_ms, bool(replace_ttl)))
    return True


def export(lock: BaseLock) -> Steps[str]:
    """End a held lease without releasing the lock; return the text by which it can be adopted."""
    lease = lock._to_change("export")
    handoff, engine = lock._handoff(lease), lock._engine
    exported: CallerFuture[None] = lock._new_future()
    undo = partial(engine.undo_export, [lease], exported)
    exported.if_undeliverable(undo)
    try:
        engine.submit(partial(engine.export, lease, exported))
        yield from exported.wait()
        exported.result()
        return handoff.to_text(engine.options.prefix)
    except BaseException:
        engine.post_if_open(undo)  # the text reaches no caller
        raise


def adopt(
    side: Side, lock_class: Callable[..., AnyLock], text: str, on_lost: OnLost | None, thread_local: bool, **more: Any
) -> Steps[AnyLock]:
    """Adopt an exported lease; return the lock object that holds it. ``more`` are further arguments of its class."""
    engine = side._engine
    handoff = Handoff.from_text(text, engine.options.prefix)
    lock_type, options = adopted_type(handoff), adopted_options(handoff, thread_local)
    lock = lock_class(engine, lock_type, handoff.name, options, on_lost, **more)
    adopted: CallerFuture[bool] = lock._new_future()
    request = Adopt(engine.leases, lock._new_lease(lock._encoded_name()), options, handoff, adopted)
    adopted.if_undeliverable(request.give_up)
    try:
        engine.submit(request.begin)
        yield from adopted.wait()
        if not adopted.result():
            raise adopted_too_late(lock.name)
        lock._take_adopted(request.lease)
        return lock
    except BaseException:
        engine.post_if_open(request.give_up)
        raise


def export_many(side: Side, locks: Iterable[BaseLock | None]) -> Steps[dict[str | bytes, str | None]]:
    """Export ``locks``; return the text of each name, or None for a lock that was lost before."""
    engine = side._engine
    to_export = leases_to_export(engine, locks)
    leases = [lease for _, lease in to_export.values() if lease is not None]
    texts: dict[str | bytes, str | None] = dict.fromkeys(to_export)
    exported: CallerFuture[set[Lease]] = side._new_future()
    undo = partial(engine.undo_export, leases, exported)
    exported.if_undeliverable(undo)
    try:
        for number, (name, (lock, lease)) in enumerate(to_export.items(), 1):
            if lease is not None:  # of use to an adopter only when the locks are exported
                texts[name] = lock._handoff(lease).to_text(engine.options.prefix)
            if number % PART == 0:
                yield from exported.pause()
        engine.submit(partial(engine.export_many, leases, exported))
        yield from exported.wait()
        texts.update(dict.fromkeys(lease.name for lease in exported.result()))  # those that were lost meanwhile
        return texts
    except BaseException:
        engine.post_if_open(undo)  # the texts reach no caller
        raise


def adopt_many(
    side: Side,
    lock_class: Callable[..., AnyLock],
    texts: Iterable[str | None],
    on_lost: OnLost | None,
    thread_local: bool,
    **more: Any,
) -> Steps[dict[str | bytes, AnyLock | None]]:
    """Adopt exported leases; return the lock object of each name, or None. ``more`` are further arguments of its class."""
    engine = side._engine

    def new_lock(lock_type: LockType, name: str | bytes, options: LockOptions) -> AnyLock:
        return lock_class(engine, lock_type, name, options, on_lost, **more)

    many = BulkAdoption(engine, texts, new_lock, thread_local)
    try:
        for _ in many.read():
            yield from side._new_future().pause()
        for adopt_part in many.parts():
            adopted: CallerFuture[None] = side._new_future()
            adopted.if_undeliverable(many.give_up)
            engine.submit(partial(adopt_part, adopted))
            yield from adopted.wait()
            adopted.result()
        return many.outcome()
    except LocksNotAdopted:
        raise  # it has the locks that were adopted
    except BaseException:
        many.give_up()
        raise


def locked(lock: BaseLock) -> Steps[bool]:
    """Query the server; return True if the lock is held by any owner."""
    query = lock._lock_type.locked(lock._encoded_name())
    return ask(lock, partial(lock._engine.query, lock.name, query, lock._lock_type.parse_locked))


def owned(lock: BaseLock) -> Steps[bool]:
    """Query the server; return True if the lock's own token is stored there."""
    lease = lock._own_or_latest()
    if lease is None or not lease.group.alive:
        return False
    return bool((yield from ask(lock, partial(lock._engine.owned, lease))))


def holders(lock: BaseLock) -> Steps[tuple[Holder, ...]]:
    """Query the server; return the holders of the lock's name, of whatever kind of lock they are."""
    state: LockState = yield from ask(lock, lock._look())
    _check_readable(state, lock.name)
    return state.holders


def holder(lock: BaseLock) -> Steps[Holder | None]:
    """Query the server; return the first holder, or None."""
    found = yield from holders(lock)
    return found[0] if found else None


def not_acquired(lock: BaseLock | BaseMultiLock[Any]) -> Steps[LockNotAcquired]:
    """Return the error for a ``with`` statement whose lock was refused, with the holder if a short look finds it."""
    several = isinstance(lock, BaseMultiLock)
    names = lock.names[:_MOST_LOOKS] if isinstance(lock, BaseMultiLock) else (lock.name,)
    states: list[LockState] = []
    if lock._engine.nodes_needed is None:
        try:
            states = yield from ask(lock, partial(lock._engine.look_at, names, _LOOK_S))
        except WheelLockError:
            pass  # the refusal is what the caller has to know
    found = next((state.holders[0] for state in states if state.holders), None)
    what = repr(lock) if isinstance(lock, BaseMultiLock) else f"The lock {quoted(lock.name)}"
    held = "" if found is None else f": {'one of them is ' if several else ''}held by {found}"
    return LockNotAcquired(f"{what} could not be acquired in time{held}", None if several else names[0], holder=found)


def force_release(side: Side, name: str | bytes, foreign: bool) -> Steps[tuple[Holder, ...]]:
    """Release a lock for its holders, of whatever process; return them."""
    engine = side._engine
    key, name = lock_name(name, engine.options.prefix), plain_name(name)
    seen: LockState = yield from ask(side, partial(engine.look, name))
    _check_readable(seen, name)
    if not seen.holders and seen.kind != "foreign":
        return ()
    if seen.kind == "foreign" and not (foreign and seen.values):
        raise WheelLockError(
            f"The key {quoted(name)} is a {seen.key_type} that has not the form of a lock, so it was not released", name
        )
    if seen.kind == "redisson read-write" or seen.left_out:
        why = f"has more than {len(seen.holders)} holders" if seen.left_out else "is a read-write lock of Redisson"
        raise WheelLockError(f"The lock {quoted(name)} {why}, and cannot be released by force", name)
    own = engine.own({lease_args(key, value) for value in seen.values})
    removed = yield from ask(side, partial(engine.force_release, name, seen, own))
    if removed is None:
        raise HolderChanged(f"The lock {quoted(name)} has got another holder meanwhile, and was not released", name)
    return seen.holders if removed else ()


def _check_readable(state: LockState, name: str | bytes) -> None:
    if state.kind == "unreadable":
        raise refused_by_server(ServerError(state.problem or "NOPERM the type of the key cannot be read"), name)


def acquire_many(
    side: Side,
    several_class: type[BaseMultiLock[AnyLock]],
    names: Iterable[Name],
    options: LockOptions,
    on_lost: OnLost | None,
    all_or_nothing: bool,
    blocking: bool,
    limit: float | None,
) -> Steps[dict[Name, AnyLock | None]]:
    """Acquire each of ``names``, or all or none; return the lock of each, or None. See :class:`BulkAcquire`.

    With ``all_or_nothing`` a call that waits is the acquire of a multi-lock, of the class ``several_class``.
    """
    engine = side._engine
    checked_wait(blocking, None)
    if blocking and limit is None:
        limit = options.blocking_timeout_s
    if all_or_nothing and blocking and limit != 0:
        keys = distinct_names(engine, names, different=True)
        if not keys:
            return {}
        several = several_class(engine, keys, options, on_lost)
        locks: dict[Name, AnyLock | None] = {name: several.locks[name] for name in keys}
        granted = yield from acquire(several, True, limit)
        return locks if granted else dict.fromkeys(keys)  # no call behind a grant: an interruption there would leave it
    acquired: CallerFuture[None] = side._new_future()

    def new_lock(name: Name) -> AnyLock:
        lock: AnyLock = several_class._lock_class(engine, EXCLUSIVE, name, options, on_lost)
        return lock

    many = BulkAcquire(engine, names, options, new_lock, all_or_nothing, acquired, limit, blocking)
    acquired.limit(engine, limit)
    acquired.if_undeliverable(many.give_up)
    try:
        for _ in many.submit():
            yield from acquired.pause()
        yield from acquired.wait()
        acquired.result()
        return many.outcome()
    except BaseException:
        many.give_up()
        raise


@uninterrupted_start
def release_all(
    side: Side,
    choose: Callable[[], tuple[list[Lease], dict[str | bytes, LossReason], Exception | None]],
    let_go: Callable[[list[Lease] | None], object],
) -> Steps[None]:
    """Release several leases.

    Args:
        side: The context or lock object whose method this is.
        choose: Returns the leases, the reasons of those that are lost, and an error to raise at the end.
        let_go: Releases the leases without waiting after an interruption; gets None if they were not chosen yet.
    """
    leases = None
    try:
        leases, lost, missing = choose()
        if leases:
            released: CallerFuture[dict[str | bytes, LossReason]] = side._new_future()
            side._engine.submit(partial(side._engine.release_many, leases, released))
    except WheelLockError:
        raise
    except MustNotWait:
        if leases is None:
            raise  # an iterable of the caller's waits
        let_go(leases)
        leases = None
    except BaseException:
        insist(let_go, leases)
        raise
    if leases:
        yield from released.wait()
        lost.update(released.result())
    raise_if_any(lost, side._engine)
    if missing is not None:
        raise copied(missing)  # this frame has the other one, which would keep it in a cycle


@uninterrupted_start
def release_many(side: Side, locks: Iterable[BaseLock | None]) -> Steps[None]:
    """Release ``locks``; all of them are read first."""
    given: list[Any] = []
    return release_all(
        side,
        lambda: leases_to_release(side._engine, read_all(side._engine, locks, given)),
        lambda leases: let_go_of(side._engine, locks, given, leases),
    )
