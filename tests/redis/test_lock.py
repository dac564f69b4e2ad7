"""One lock and one thread: acquire and release, what a lock says of itself, and misuse that never reaches a server."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError

from tests.redis.support import LONG_S, REFUSED_S, Backend, believes_no_longer_than_the_server, token_of
from tests.support.waiting import eventually
from wheel_lock import (
    HashedWheelTimer,
    Lock,
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotAcquired,
    LockNotHeld,
    LockServerError,
    LossReason,
    WheelLockError,
)

# Acquire and release


def test_a_lock_is_held_inside_with_and_free_after_it(backend: Backend, context: LockContext) -> None:
    with context.lock("order:42", timeout=30.0) as lock:
        assert lock.is_held
        assert backend.view.get("order:42") == token_of(lock)
    assert not lock.is_held
    assert not backend.view.exists("order:42")


def test_acquire_sets_the_timeout_and_release_takes_the_key_away(backend: Backend, context: LockContext) -> None:
    lock = context.lock("order:42", timeout=30.0)
    assert lock.acquire() is True
    assert 0 < backend.view.pttl("order:42") <= 30_000
    lock.release()
    assert not backend.view.exists("order:42")


def test_a_lock_is_released_when_its_block_raises(backend: Backend, context: LockContext) -> None:
    with pytest.raises(ZeroDivisionError), context.lock("order:42"):
        raise ZeroDivisionError
    assert not backend.view.exists("order:42")


def test_a_second_release_says_that_nothing_is_held(context: LockContext) -> None:
    lock = context.lock("order:42")
    lock.acquire()
    lock.release()
    with pytest.raises(LockNotHeld) as caught:
        lock.release()
    assert caught.value.lock_name == "order:42"


def test_a_lock_that_was_never_acquired_cannot_be_released_or_extended(context: LockContext) -> None:
    lock = context.lock("order:42")
    for change in (lock.release, lock.reacquire, lambda: lock.extend(1.0)):
        with pytest.raises(LockNotHeld, match="order:42"):
            change()


def test_a_lock_object_can_be_used_again_and_every_lease_is_new(backend: Backend, context: LockContext) -> None:
    lock = context.lock("order:42")
    tokens = set()
    for _ in range(5):
        with lock:
            tokens.add(token_of(lock))
            assert backend.view.get("order:42") == token_of(lock)
    assert len(tokens) == 5
    assert all(len(token) >= 22 for token in tokens)  # 128 bits in base64


def test_a_held_lock_is_not_reentrant(backend: Backend, context: LockContext) -> None:
    with context.lock("order:42") as lock:
        token = token_of(lock)
        with pytest.raises(LockAlreadyHeld) as caught:
            lock.acquire()
        assert caught.value.lock_name == "order:42"
        assert lock.is_held
        assert backend.view.get("order:42") == token


def test_two_objects_of_one_name_exclude_each_other(context: LockContext) -> None:
    first, second = context.lock("order:42"), context.lock("order:42")
    with first:
        assert not second.acquire(blocking=False)
        assert first.is_held
        assert not second.is_held
    assert second.acquire(blocking=False)


def test_a_with_statement_that_gets_no_lock_raises_and_leaves_the_key_alone(
    backend: Backend, context: LockContext
) -> None:
    backend.view.set("order:42", "somebody")
    with pytest.raises(LockNotAcquired) as caught, context.lock("order:42", blocking=False):
        pytest.fail("the block must not run")
    assert caught.value.lock_name == "order:42"
    assert backend.view.get("order:42") == b"somebody"


def test_an_error_in_the_block_is_not_hidden_by_a_failing_release(backend: Backend, context: LockContext) -> None:
    def work() -> None:
        with context.lock("order:42"):
            backend.view.delete("order:42")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        work()
    assert any("could not be released" in note for note in caught.value.__notes__)


# The owner's token


@pytest.mark.parametrize("token", ["mine", b"mine", b"\x00\xff\r\n$", "x" * 512])
def test_a_token_can_be_given(backend: Backend, context: LockContext, token: str | bytes) -> None:
    lock = context.lock("order:42")
    lock.acquire(token=token)
    wire = token.encode() if isinstance(token, str) else token
    assert backend.view.get("order:42") == wire == lock.token
    assert lock.owned()
    lock.release()
    assert not backend.view.exists("order:42")


def test_the_same_given_token_does_not_open_a_lock_that_is_held(context: LockContext) -> None:
    first, second = context.lock("order:42"), context.lock("order:42")
    first.acquire(token="same")
    assert not second.acquire(blocking=False, token="same")
    assert first.is_held


# Other people's keys


def test_releasing_a_lock_whose_key_has_gone_says_so(backend: Backend, context: LockContext) -> None:
    lock = context.lock("order:42")
    lock.acquire()
    backend.view.delete("order:42")
    with pytest.raises(LockLost) as caught:
        lock.release()
    assert caught.value.reason is LossReason.KEY_GONE
    assert caught.value.lock_name == "order:42"
    assert isinstance(caught.value, LockNotOwnedError)
    assert lock.lost is LossReason.KEY_GONE
    assert not lock.is_held


@pytest.mark.parametrize("kind", ["string", "list"])
def test_releasing_leaves_a_key_alone_that_another_has_taken(backend: Backend, context: LockContext, kind: str) -> None:
    lock = context.lock("order:42")
    lock.acquire()
    backend.view.delete("order:42")
    if kind == "string":
        backend.view.set("order:42", "theirs", px=30_000)
    else:
        backend.view.rpush("order:42", "theirs")
    with pytest.raises(LockLost) as caught:
        lock.release()
    assert caught.value.reason is LossReason.TAKEN
    assert backend.view.exists("order:42")


def test_a_lost_lock_stays_lost_until_it_is_acquired_anew(backend: Backend, context: LockContext) -> None:
    lock = context.lock("order:42")
    lock.acquire()
    backend.view.delete("order:42")
    for _ in range(2):
        with pytest.raises(LockLost):
            lock.release()
    assert lock.acquire()
    assert lock.lost is None
    assert lock.is_held
    lock.release()


def test_a_name_that_holds_another_type_is_taken(backend: Backend, context: LockContext) -> None:
    backend.view.rpush("order:42", "theirs")
    assert not context.lock("order:42").acquire(blocking=False)
    assert backend.view.llen("order:42") == 1


# What a lock says of itself


def test_a_lock_that_was_never_acquired_knows_it(context: LockContext) -> None:
    lock = context.lock("order:42", timeout=7.0)
    assert (lock.name, lock.timeout) == ("order:42", 7.0)
    assert not lock.is_held
    assert lock.lost is None
    assert lock.token is None
    assert lock.fence is None
    assert lock.renewals == 0
    assert lock.remaining() == 0.0
    assert not lock.locked()
    assert not lock.owned()
    with pytest.raises(LockNotHeld):
        lock.raise_if_lost()


def test_a_held_lock_believes_less_long_than_its_key_lives(backend: Backend, context: LockContext) -> None:
    with context.lock("order:42", timeout=30.0) as lock:
        for _ in range(50):
            assert believes_no_longer_than_the_server(lock, backend.view)
        assert 0.0 < lock.remaining() <= 30.0 * 0.99
        lock.raise_if_lost()


def test_a_released_lock_is_neither_held_nor_lost(context: LockContext) -> None:
    with context.lock("order:42") as lock:
        pass
    assert not lock.is_held
    assert lock.lost is None
    assert lock.token is None
    assert lock.remaining() == 0.0
    assert not lock.owned()
    with pytest.raises(LockNotHeld):
        lock.raise_if_lost()


def test_locked_and_owned_ask_the_server(backend: Backend, context: LockContext) -> None:
    mine, other = context.lock("order:42"), context.lock("order:42")
    with mine:
        assert (mine.locked(), mine.owned()) == (True, True)
        assert (other.locked(), other.owned()) == (True, False)
        backend.view.set("order:42", "theirs", px=30_000)
        assert (mine.locked(), mine.owned()) == (True, False)
        backend.view.delete("order:42")
        assert (mine.locked(), mine.owned()) == (False, False)
        backend.view.set("order:42", token_of(mine), px=30_000)


def test_a_lock_that_has_lapsed_is_lost_at_the_first_look(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    lock = context.lock("order:42", timeout=30.0)
    lock.acquire()
    clock.leap(60.0)
    assert not lock.is_held
    assert lock.lost is LossReason.NOT_CONFIRMED
    assert lock.remaining() == 0.0
    with pytest.raises(LockLost, match="not confirmed in time"):
        lock.raise_if_lost()
    with pytest.raises(LockLost):
        lock.release()


def test_a_lock_shows_what_state_it_is_in_and_never_its_token(backend: Backend, context: LockContext) -> None:
    lock = context.lock("order:42")
    assert repr(lock) == "<Lock 'order:42' not acquired>"
    lock.acquire()
    shown = repr(lock)
    assert "held" in shown
    assert token_of(lock).decode() not in shown
    backend.view.delete("order:42")
    with pytest.raises(LockLost):
        lock.release()
    assert repr(lock) == "<Lock 'order:42' lost: key gone>"


def test_code_that_catches_redis_pys_lock_errors_goes_on_working(context: LockContext) -> None:
    with pytest.raises(LockError):
        context.lock("order:42").release()
    assert issubclass(LockLost, LockNotOwnedError)


# Names


@pytest.mark.parametrize(
    "name",
    [
        "order:42",
        "Schlüssel €",
        "\U0001f512",
        b"\x00",
        b"\x00\xff\xfe",
        b"two\r\nlines\r\n$3\r\n",
        b"*1\r\n$8\r\nFLUSHALL\r\n",
        "{tag}name",
        "}{",
        " ",
        b"x" * 512,
        bytes(range(256)),
    ],
)
def test_a_name_of_any_bytes_arrives_as_it_is(backend: Backend, context: LockContext, name: str | bytes) -> None:
    key = name.encode() if isinstance(name, str) else name
    backend.view.set("bystander", "untouched")
    with context.lock(name, fencing=True) as lock:
        assert backend.view.get(key) == token_of(lock)
        assert lock.extend(5.0)
        assert lock.owned()
        assert [held.name for held in context.held()] == [name]
        assert repr(lock).isascii()
    assert not backend.view.exists(key)
    with pytest.raises(LockNotHeld) as caught:
        lock.release()
    assert caught.value.lock_name == name
    assert str(caught.value).isprintable()
    assert backend.view.get("bystander") == b"untouched"


def test_text_and_its_utf_8_bytes_are_one_name(context: LockContext) -> None:
    with context.lock("Schlüssel"):
        assert not context.lock("Schlüssel".encode()).acquire(blocking=False)


# Misuse


class NoServer:
    """A context whose every attempt at I/O would be noticed: its timer must not even have started its thread."""

    def __init__(self) -> None:
        self.timer = HashedWheelTimer()
        self.context = LockContext(redis.Redis(host="127.0.0.1", port=1), timer=self.timer, response_timeout=0.2)

    def check_untouched(self) -> None:
        assert not self.timer.running
        assert self.context.stats().connects == 0


@pytest.fixture
def no_server() -> NoServer:
    return NoServer()


BAD_NAMES: list[Any] = ["", b"", "x" * 513, b"x" * 513, "ü" * 257, "\ud800", None, 5, ["a"], bytearray(b"a")]
BAD_SECONDS: list[Any] = [-1, -0.001, math.nan, math.inf, -math.inf, 2**63, 10**400, "3", True, [3], b"3", 3j]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: f"{name!r:.12}")
def test_a_name_that_cannot_work_is_refused_before_any_io(no_server: NoServer, name: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        no_server.context.lock(name)
    no_server.check_untouched()


@pytest.mark.parametrize("value", [*BAD_SECONDS, 0, None], ids=lambda value: f"{value!r:.12}")
def test_a_timeout_that_cannot_work_is_refused_before_any_io(no_server: NoServer, value: Any) -> None:
    with pytest.raises(ValueError, match="timeout"):
        no_server.context.lock("order:42", timeout=value)
    no_server.check_untouched()


@pytest.mark.parametrize("value", BAD_SECONDS, ids=lambda value: f"{value!r:.12}")
@pytest.mark.parametrize("what", ["blocking_timeout", "renew_every", "max_hold", "retry_every"])
def test_a_duration_that_cannot_work_is_refused_before_any_io(no_server: NoServer, what: str, value: Any) -> None:
    with pytest.raises(ValueError, match=what):
        no_server.context.lock("order:42", **{what: value})
    no_server.check_untouched()


@pytest.mark.parametrize(
    "options",
    [
        {"renew_every": 0},
        {"max_hold": 0},
        {"retry_every": 0},
        {"max_renewals": -1},
        {"max_renewals": 1.5},
        {"max_renewals": True},
        {"max_attempts": 0},
        {"max_attempts": 2.0},
        {"on_lost": "not callable"},
        {"timeout": 0.01},  # too short to be renewed
        {"timeout": 3.0, "renew_every": 3.0},
        {"timeout": 3.0, "renew_every": 2.99},  # too late: a lease of 3 s is believed in for 2.968 s
        {"timeout": 3.0, "renew_every": 1.0, "renew": False},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused_before_any_io(no_server: NoServer, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(key for key in reversed(options) if key != "renew")):
        no_server.context.lock("order:42", **options)
    no_server.check_untouched()


@pytest.mark.parametrize("value", BAD_SECONDS, ids=lambda value: f"{value!r:.12}")
def test_a_blocking_timeout_that_cannot_work_is_refused_by_acquire(no_server: NoServer, value: Any) -> None:
    with pytest.raises(ValueError, match="blocking_timeout"):
        no_server.context.lock("order:42").acquire(blocking_timeout=value)
    no_server.check_untouched()


@pytest.mark.parametrize("token", ["", b"", "x" * 513, "\ud800", 5], ids=lambda token: f"{token!r:.12}")
def test_a_token_that_cannot_work_is_refused_before_any_io(no_server: NoServer, token: Any) -> None:
    with pytest.raises(ValueError, match="token"):
        no_server.context.lock("order:42").acquire(token=token)
    no_server.check_untouched()


@pytest.mark.parametrize("value", [*BAD_SECONDS, 0, None], ids=lambda value: f"{value!r:.12}")
def test_an_extension_that_cannot_work_is_refused_and_changes_nothing(
    backend: Backend, context: LockContext, value: Any
) -> None:
    # A negative time-to-live would make PEXPIRE delete the key.
    with context.lock("order:42", timeout=30.0) as lock:
        for replace in (False, True):
            with pytest.raises(ValueError, match="additional_time"):
                lock.extend(value, replace_ttl=replace)
        assert lock.is_held
        assert 20_000 < backend.view.pttl("order:42") <= 30_000


def test_what_is_not_held_cannot_be_changed_without_io(no_server: NoServer) -> None:
    lock = no_server.context.lock("order:42")
    changes: list[Callable[[], object]] = [lock.release, lock.reacquire, lambda: lock.extend(1.0), lock.raise_if_lost]
    for change in changes:
        with pytest.raises(LockNotHeld):
            change()
    no_server.check_untouched()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": 5001},
        {"response_timeout": 0},
        {"connect_timeout": math.nan},
        {"close_timeout": -1},
        {"max_held": 0},
    ],
    ids=str,
)
def test_a_context_refuses_settings_that_cannot_work(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        LockContext(redis.Redis(), **options)


def test_the_servers_error_is_passed_on(fresh: Backend) -> None:
    fresh.view.config_set("maxmemory", "1")  # noeviction is the default
    lock = fresh.context().lock("order:42")
    with pytest.raises(LockServerError, match="OOM") as caught:
        lock.acquire()
    assert caught.value.lock_name == "order:42"
    assert isinstance(caught.value, redis.ResponseError)
    assert isinstance(caught.value, WheelLockError)
    assert not lock.is_held


def test_a_held_lock_lives_on_while_the_server_is_out_of_memory(fresh: Backend) -> None:
    context = fresh.context()
    lock: Lock
    with context.lock("order:42", timeout=3.0, renew_every=0.1) as lock:
        fresh.view.config_set("maxmemory", "1")
        eventually(lambda: lock.renewals >= 2, LONG_S)
        assert lock.is_held
        assert lock.extend(1.0)
    assert not fresh.view.exists("order:42")


def test_a_lease_of_a_hundredth_of_a_second_is_possible_without_renewal(backend: Backend, context: LockContext) -> None:
    lock = context.lock("order:42", timeout=0.01, renew=False)
    assert lock.acquire(
        blocking_timeout=LONG_S
    )  # a grant that comes too late to be believed is no grant, so it tries on
    eventually(lambda: not lock.is_held, LONG_S)
    eventually(lambda: not backend.view.exists("order:42"), LONG_S)


# Tokens that the caller chooses


@pytest.mark.parametrize("fencing", [False, True], ids=["plain", "fenced"])
def test_a_chosen_token_that_somebody_else_has_chosen_too_grants_nothing(context: LockContext, fencing: bool) -> None:
    first = context.lock("order:42", timeout=30.0, fencing=fencing)
    assert first.acquire(token="host-1")
    for how in ({"blocking": False}, {"blocking_timeout": REFUSED_S}):
        second = context.lock("order:42", timeout=30.0, fencing=fencing, thread_local=False)
        assert not second.acquire(token="host-1", **how)
        assert not second.is_held
    assert first.is_held
    assert first.owned()
    first.release()


def test_an_interrupted_wait_with_a_chosen_token_leaves_its_namesake_alone(context: LockContext) -> None:
    with context.lock("order:42", timeout=30.0) as holder:
        holder.release()
        assert holder.acquire(token="host-1")
        waiter = context.lock("order:42", timeout=30.0, thread_local=False, blocking_timeout=REFUSED_S)
        assert not waiter.acquire(token="host-1")
        assert holder.owned()


# Copies


@pytest.mark.parametrize("face", ["threads", "tasks", "reentrant", "permit"])
def test_a_lock_can_be_neither_copied_nor_pickled(backend: Backend, context: LockContext, face: str) -> None:
    make: dict[str, Callable[[], Any]] = {
        "threads": lambda: context.lock("order:42"),
        "tasks": lambda: context.asyncio.lock("order:42"),
        "reentrant": lambda: context.reentrant_lock("order:42"),
        "permit": lambda: context.semaphore("order:42", 2),
    }
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"'order:42'.* cannot be copied or pickled"):
            copied(make[face]())


def test_what_makes_locks_cannot_be_pickled(context: LockContext) -> None:
    for whole in (context.rw_lock("order:42"), context.multi_lock(["a", "b"])):
        with pytest.raises(TypeError, match="cannot be pickled: each process"):
            pickle.dumps(whole)
