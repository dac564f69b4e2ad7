"""One lock and one thread: acquire and release, what a lock says of itself, and misuse that never reaches a server."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import LockError

from tests.support.backend import BOTH, Backend, token_of
from tests.support.callers import Caller
from tests.support.lock_types import KINDS, NAME, make
from wheel_lock import LockContext, LockLost, LockNotHeld

pytestmark = pytest.mark.servers("real")

# Acquire and release


def test_a_lock_that_is_renamed_is_the_lock_of_its_new_name(backend: Backend) -> None:
    lock = backend.context().lock("order:42")
    with lock:
        pass
    lock.name = "order:43"
    with lock:
        assert backend.view.get("order:43") == token_of(lock)
        assert not backend.view.exists("order:42")


def test_an_error_in_the_block_releases_and_is_not_hidden_by_a_failing_release(backend: Backend, me: Caller) -> None:
    with pytest.raises(ZeroDivisionError), me.locks.lock("order:42"):
        raise ZeroDivisionError
    assert not backend.view.exists("order:42")

    def work() -> None:
        with me.locks.lock("order:42"):
            backend.view.delete("order:42")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        work()
    assert any("could not be released" in note for note in caught.value.__notes__)


# The owner's token


@BOTH
@pytest.mark.parametrize("token", ["mine", b"mine", b"\x00\xff\r\n$", "x" * 512])
def test_a_token_can_be_given(backend: Backend, me: Caller, token: str | bytes) -> None:
    lock = me.locks.lock("order:42")
    lock.acquire(token=token)
    wire = token.encode() if isinstance(token, str) else token
    assert backend.view.get("order:42") == wire == lock.token
    assert lock.owned()
    lock.release()
    assert not backend.view.exists("order:42")


# What a lock says of itself


def test_a_lock_that_was_never_acquired_knows_it(me: Caller) -> None:
    lock = me.locks.lock("order:42", timeout=7.0)
    assert (lock.name, lock.timeout) == ("order:42", 7.0)
    assert not lock.is_held
    assert lock.lost is None
    assert lock.token is None
    assert lock.fence is None
    assert lock.renewals == 0
    assert lock.remaining() == 0.0
    assert not lock.locked()
    assert not lock.owned()
    for call in (lock.raise_if_lost, lock.release, lock.reacquire, lock.export, lambda: lock.extend(1.0)):
        with pytest.raises(LockNotHeld, match="order:42") as caught:
            call()
        assert isinstance(caught.value, LockError)


def test_a_lock_shows_what_state_it_is_in_and_never_its_token(backend: Backend, me: Caller) -> None:
    lock = me.locks.lock("order:42")
    assert repr(lock) == "<Lock 'order:42' not acquired>"
    lock.acquire()
    shown = repr(lock)
    assert "held" in shown
    assert token_of(lock).decode() not in shown
    backend.view.delete("order:42")
    with pytest.raises(LockLost):
        lock.release()
    assert repr(lock) == "<Lock 'order:42' lost: key gone>"


# Names


@BOTH
@pytest.mark.parametrize(
    "name",
    [
        *(
            "Schlüssel €",
            "\U0001f512",
            b"\x00",
            b"\x00\xff\xfe",
            b"two\r\nlines\r\n$3\r\n",
            b"*1\r\n$8\r\nFLUSHALL\r\n",
        ),
        *("{tag}name", "}{", " ", b"x" * 512, bytes(range(256))),
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


# Beside redis-py's


@BOTH
def test_the_seven_methods_of_redis_py_mean_the_same(backend: Backend, context: LockContext) -> None:
    def tour(lock: Any) -> list[object]:
        seen: list[object] = [lock.locked(), lock.owned(), lock.acquire(blocking=False), lock.locked(), lock.owned()]
        seen += [lock.extend(10), round(backend.view.pttl("order:42") / 10_000)]
        seen += [lock.extend(20, replace_ttl=True), round(backend.view.pttl("order:42") / 10_000)]
        seen += [lock.reacquire(), round(backend.view.pttl("order:42") / 10_000)]
        lock.release()
        seen += [lock.locked(), lock.owned(), lock.acquire(token="x"), backend.view.get("order:42")]
        lock.release()
        return seen

    ours = context.lock("order:42", timeout=30.0)
    assert tour(ours) == tour(backend.view.lock("order:42", timeout=30.0))


# Copies


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_neither_a_lock_nor_a_context_can_be_copied_or_pickled(
    context: LockContext, copied: Callable[[object], object]
) -> None:
    quorum = LockContext.quorum([redis.Redis(port=port) for port in (1, 2, 3)])
    contexts = [context, context.asyncio, quorum, quorum.asyncio]
    locks = [*(make(context, kind) for kind in KINDS), context.rw_lock(NAME), context.asyncio.lock(NAME)]
    with context.lock(NAME, timeout=30.0) as lock:
        for thing, says in [
            *((whole, f"a {type(whole).__name__} cannot be copied or pickled: use the same .*") for whole in contexts),
            *((each, f"'{NAME}.* cannot be copied or pickled.*") for each in locks),
        ]:
            with pytest.raises(TypeError, match=rf"{says}export\(\) and adopt"):
                copied(thing)
        assert lock.owned()
