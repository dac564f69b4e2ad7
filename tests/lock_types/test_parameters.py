"""What a lock of any kind can be made with, and what is refused before any command is sent."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis

from tests.support.backend import Backend
from tests.support.callers import Caller
from tests.support.event_loops import at_once
from tests.support.lock_types import KINDS, NAME, make
from wheel_lock import HashedWheelTimer, LockAlreadyHeld, LockContext, LockNotHeld, WheelLockError

pytestmark = pytest.mark.servers("real")

kinds = pytest.mark.parametrize("kind", KINDS)
ran_on: set[str] = set()
"""The names of the threads on which a method of a Loud name was run."""


def noting(method: str) -> Any:
    def note(self: str, *arguments: Any) -> Any:
        ran_on.add(threading.current_thread().name)
        return getattr(str, method)(self, *arguments)

    return note


METHODS = ["__hash__", "__eq__", "encode", "__repr__", "__str__", "__format__", "__len__", "isprintable", "startswith"]
Loud: type[str] = type("Loud", (str,), {method: noting(method) for method in METHODS})
MAKERS = ["lock", "reentrant_lock", "rw_lock", "fair_lock", "semaphore", "multi_lock"]
makers = pytest.mark.parametrize("maker", MAKERS)
faces = pytest.mark.parametrize("face", ["threads", "tasks"])


@pytest.fixture
def nowhere() -> Iterator[LockContext]:
    """A context whose every attempt at I/O would be noticed: its timer does not even start its thread."""
    timer = HashedWheelTimer()
    context = LockContext(redis.Redis(port=1), timer=timer, response_timeout=0.2)
    yield context
    assert not timer.running
    assert context.stats().connects == 0


def called(context: LockContext, face: str, maker: str, name: Any, **terms: Any) -> Any:
    """Call what makes locks, with a name or a list of one, and a number of permits where that is asked for."""
    make_it = getattr(context if face == "threads" else context.asyncio, maker)
    if maker == "multi_lock":
        return make_it([name], **terms)
    return make_it(name, 2, **terms) if maker == "semaphore" else make_it(name, **terms)


@makers
@faces
def test_bad_names_and_terms_are_refused(nowhere: LockContext, face: str, maker: str) -> None:
    """tests/test_options.py says what is bad; here each of these must check it."""
    refuse = partial(called, nowhere, face, maker)
    with pytest.raises(ValueError, match="lock name"):
        refuse("")
    bad: dict[str, Any] = {"timeout": math.nan, "blocking_timeout": -1.0, "renew_every": 30.0, "max_renewals": -1}
    bad |= {"max_hold": 0.0, "retry_every": 0.0, "max_attempts": 0, "on_lost": "no function"}
    for term, value in bad.items():
        with pytest.raises(ValueError, match=term):
            refuse(NAME, **{term: value})
    with pytest.raises(ValueError, match="renew_every"):
        refuse(NAME, renew=False, renew_every=1.0)
    if maker == "lock" and face == "threads":  # of tasks: see tests/aio/test_refusals.py
        with pytest.raises(ValueError, match="token"):
            refuse(NAME).acquire(token="")
    odd: dict[str, Any] = {"colour": "red", "fallback": 1.0}
    if maker in ("semaphore", "multi_lock"):
        odd["fencing"] = True
    if maker in ("reentrant_lock", "rw_lock"):
        odd["thread_local"] = False
    if maker in ("rw_lock", "multi_lock") or face == "threads":
        odd["cancel_on_lost"] = True
    for term, value in odd.items():
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{term}'"):
            refuse(NAME, **{term: value})


@faces
def test_a_semaphore_needs_a_number_of_permits_and_several_locks_need_names(nowhere: LockContext, face: str) -> None:
    makes: Any = nowhere if face == "threads" else nowhere.asyncio
    for permits in (0, -1, True, 2.0, "2", None):
        with pytest.raises(ValueError, match="permits"):
            makes.semaphore(NAME, permits)
    no_names: list[Any] = [[], (), iter([]), ["a", ""], ["a", 7]]
    for names in no_names:
        with pytest.raises(ValueError, match="name"):
            makes.multi_lock(names)
    for text in ("order:42", b"order:42", ""):
        with pytest.raises(ValueError, match="several names"):
            makes.multi_lock(text)


@pytest.mark.parametrize("kind", ["reentrant", "read", "write", "fair", "semaphore"])
async def test_these_make_their_tokens_themselves(nowhere: LockContext, kind: str) -> None:
    with pytest.raises(ValueError, match="token"):
        make(nowhere, kind).acquire(token="mine")
    with pytest.raises(ValueError, match="token"):
        at_once(make(nowhere.asyncio, kind).acquire(token="mine"))


@pytest.mark.parametrize("kind", ["reentrant", "read", "write"])
def test_a_token_does_not_slip_in_once_it_is_held(context: LockContext, kind: str) -> None:
    with make(context, kind) as lock:
        with pytest.raises((ValueError, LockAlreadyHeld)):
            lock.acquire(token="mine")
        assert lock.count == 1


@kinds
def test_a_wait_of_no_length_is_refused_or_none(context: LockContext, other: LockContext, kind: str) -> None:
    lock = make(context, kind)
    for bad in (-1.0, math.nan, True):
        with pytest.raises(ValueError, match="blocking_timeout"):
            lock.acquire(blocking_timeout=bad)
    with context.lock("to connect"), make(other, {"read": "write"}.get(kind, kind)):
        assert lock.acquire(blocking_timeout=0) is False


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "multi"])
def test_a_bad_extension_is_refused_and_changes_nothing(backend: Backend, context: LockContext, kind: str) -> None:
    with make(context, kind, timeout=30.0) as lock:
        for bad in (0.0, -1.0, math.nan, math.inf, 1e10, True):  # a negative one would have PEXPIRE delete the key
            for replace in (False, True):
                with pytest.raises(ValueError, match="additional_time"):
                    lock.extend(bad, replace_ttl=replace)
        assert lock.is_held
        assert 20_000 < backend.view.pttl(NAME) <= 30_000


@pytest.mark.parametrize("kind", ["reentrant", "read", "write", "semaphore"])
def test_these_cannot_be_handed_over(me: Caller, kind: str) -> None:
    with make(me.locks, kind) as lock:
        with pytest.raises(WheelLockError, match="cannot be handed over"):
            lock.export()
        assert lock.is_held


@kinds
def test_a_lock_shows_what_it_is(context: LockContext, kind: str) -> None:
    lock = make(context, kind)
    with lock:
        assert NAME in repr(lock)
        tokens = [one.token for one in lock.locks.values()] if kind == "multi" else [lock.token]
        assert not any(token.decode() in repr(lock) for token in tokens)
    assert f"{NAME}'" in repr(context.rw_lock(NAME))


@kinds
def test_a_name_of_a_class_of_its_own_runs_no_method_on_the_timers_thread(
    backend: Backend, me: Caller, kind: str
) -> None:
    ran_on.clear()
    lock, other = make(me.locks, kind, Loud(NAME), timeout=1.0), make(me.locks, kind, Loud(NAME), timeout=1.0)
    assert lock.acquire()
    if kind in ("exclusive", "fair"):
        assert not other.acquire(blocking_timeout=0.05)
    if kind != "multi":
        lock.name = Loud(NAME)
        assert lock.locked()
        assert lock.holder() is not None
    backend.view.flushall()
    with pytest.raises(WheelLockError):
        lock.release()
    assert not {name for name in ran_on if name.startswith("wheel-lock")}


def test_names_in_bulk_run_no_method_on_the_timers_thread(backend: Backend) -> None:
    ran_on.clear()
    context = backend.context()
    locks = context.acquire_many([Loud("a"), Loud("b")], 1.0)
    assert {type(name) for name in locks} == {str}
    backend.view.delete("a")
    with pytest.raises(WheelLockError):
        context.release_many(lock for lock in locks.values() if lock is not None)
    context.lock("c").acquire()
    assert context.force_release(Loud("c"))
    assert not {name for name in ran_on if name.startswith("wheel-lock")}


def test_a_multi_lock_of_which_one_was_released_by_itself_says_so_and_releases_the_others(
    backend: Backend, context: LockContext
) -> None:
    lock = context.multi_lock(["a", "b"])
    assert lock.acquire()
    assert lock.locks["a"].release()
    with pytest.raises(LockAlreadyHeld):
        lock.acquire()
    with pytest.raises(LockNotHeld):
        lock.release()
    assert not backend.view.exists("a", "b")
