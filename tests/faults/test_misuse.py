"""Fault 41: calls that cannot be right are refused before a byte is sent; those that can be work."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.faults.sent_commands import assert_sends_nothing
from tests.faults.support import Losses, own_context, wait_s
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import (
    LockContext,
    LockLost,
    LossReason,
    WheelLockError,
    WrongThread,
)

pytestmark = pytest.mark.slow

NAME = "order:42"


@pytest.fixture
def context(proxy: TcpProxy) -> Iterator[LockContext]:
    """Behind a proxy that sees every byte, and connected, so that anything that is sent is seen at once."""
    with own_context(proxy.url) as context:
        with context.lock("warm up"):
            pass
        yield context


@pytest.fixture
def sends_nothing(proxy: TcpProxy, context: LockContext) -> Callable[[Callable[[], object]], None]:
    return partial(assert_sends_nothing, proxy, context)


def test_fault_41_a_value_that_makes_no_sense_is_refused_before_any_io(
    context: LockContext, sends_nothing: Callable[[Callable[[], object]], None]
) -> None:
    """41. A timeout of 0, negative, NaN, 2**63 and the like: a clear error before any I/O.

    What makes no sense tests/test_options.py says; here it is that each method looks before it sends.
    """
    bad: dict[str, Any] = {"timeout": 0, "renew_every": math.nan, "max_hold": -1.0, "retry_every": 2**63}
    too_late: dict[str, Any] = {"timeout": 1.0, "renew_every": 0.988}

    names: list[Any] = ["a\ud800b", "n" * (1 << 20), b"\0" * (1 << 20), bytearray(b"abc")]

    def misuse() -> None:
        for parameter, value in [*bad.items(), ("blocking_timeout", math.inf)]:
            with pytest.raises(ValueError, match=parameter):
                context.lock(NAME, **{parameter: value})
            if parameter not in ("retry_every", "blocking_timeout"):
                with pytest.raises(ValueError, match=parameter):
                    context.acquire_many([NAME], **{parameter: value})
        with pytest.raises(ValueError, match="renew_every"):
            context.lock(NAME, **too_late)
        with pytest.raises(ValueError, match="blocking_timeout"):
            context.lock(NAME).acquire(blocking_timeout=-1.0)
        with pytest.raises(ValueError, match="token"):
            context.lock(NAME).acquire(token="t" * 513)
        for name in names:
            for call in (lambda: context.lock(name), lambda: context.acquire_many(["good", name, "good too"])):  # noqa: B023
                with pytest.raises(ValueError, match="name") as caught:
                    call()
                assert len(str(caught.value)) < 300  # and not a word too many about it
                assert str(caught.value).isprintable()

    sends_nothing(misuse)
    with pytest.raises(ValueError, match="delay"):
        context.timer.new_timeout(print, math.nan)
    assert context.timer.pending == 0


def test_fault_41_an_extension_that_makes_no_sense_does_not_touch_the_key(
    redis_server: RedisServer, context: LockContext, sends_nothing: Callable[[Callable[[], object]], None]
) -> None:
    """41. ... because PEXPIRE with a negative value deletes the key."""
    client = redis_server.client()
    lock = context.lock(NAME, timeout=30.0)
    lock.acquire()
    bad: list[Any] = [0, -1.0, math.nan, math.inf, -math.inf, 2**63, 10**400, True, "30", None]

    def misuse() -> None:
        for value, replace in itertools.product(bad, (False, True)):
            with pytest.raises(ValueError, match="additional_time"):
                lock.extend(value, replace_ttl=replace)

    sends_nothing(misuse)
    assert lock.is_held
    assert client.get(NAME) == lock.token
    assert lock.extend(1e-9)  # the least there is: a millisecond, not nought
    assert lock.is_held


@pytest.mark.parametrize("timeout", [75 * 86400.0, 1e9], ids=["75 days", "the longest"])
def test_fault_41_a_very_long_timeout_that_is_accepted_works(redis_server: RedisServer, timeout: float) -> None:
    """41. What is not refused must work: the thread that waits for a renewal in weeks must not break on that."""
    client = redis_server.client()
    losses = Losses()
    with own_context(redis_server) as context:
        lock = context.lock(NAME, timeout=timeout, on_lost=losses)
        assert lock.acquire()
        wait_s(0.1)
        assert context.timer.deaths == 0
        assert lock.is_held
        assert not losses
        assert client.pttl(NAME) > (timeout - 60.0) * 1000
        lock.release()


def test_fault_41_a_very_long_delay_of_a_user_does_not_cost_anybody_a_lock(redis_server: RedisServer) -> None:
    """41. The same for the timer that users share with the locks."""
    with own_context(redis_server) as context:
        timeout = context.timer.new_timeout(lambda timeout: None, 1e9)
        with context.lock(NAME, timeout=30.0) as lock:
            wait_s(0.2)
            assert lock.is_held
        assert timeout.cancel()
        assert context.timer.deaths == 0


def test_fault_41_the_same_lock_twice_in_one_bulk_is_released_once(context: LockContext) -> None:
    """41. Double release within one call."""
    lock = context.lock(NAME)
    lock.acquire()
    context.release_many([lock, None, lock])
    assert not lock.is_held
    assert context.stats().released == 2  # with the warm-up's


def test_fault_41_the_wrong_thread_is_refused_before_any_io(
    redis_server: RedisServer, context: LockContext, sends_nothing: Callable[[Callable[[], object]], None]
) -> None:
    """41. Wrong thread: neither release nor extend, one by one or in bulk; the owner's lease is untouched."""
    lock = context.lock(NAME, timeout=30.0)
    lock.acquire()
    errors: list[WheelLockError] = []

    def misuse() -> None:
        for use in (
            lock.release,
            lambda: lock.extend(1.0),
            lock.reacquire,
            lambda: context.release_many([lock]),
        ):
            try:
                use()
            except WheelLockError as error:
                errors.append(error)

    def in_another_thread() -> None:
        stranger = threading.Thread(target=misuse)
        stranger.start()
        stranger.join()

    sends_nothing(in_another_thread)
    assert [type(error) for error in errors] == [WrongThread] * 4
    assert all(NAME in str(error) for error in errors)
    assert lock.is_held
    assert redis_server.client().get(NAME) == lock.token
    lock.release()


def test_fault_41_nothing_can_be_done_with_a_lost_lock(
    redis_server: RedisServer, context: LockContext, sends_nothing: Callable[[Callable[[], object]], None]
) -> None:
    """41. Extend after loss: a clear error before any I/O, and the next holder's time-to-live is its own."""
    client = redis_server.client()
    losses = Losses()
    lock = context.lock(NAME, timeout=3.0, renew_every=0.05, on_lost=losses)
    lock.acquire()
    client.set(NAME, "another", px=60_000)
    eventually(lambda: losses)

    def misuse() -> None:
        for use in (
            lambda: lock.extend(100.0),
            lambda: lock.extend(0.001, replace_ttl=True),
            lock.reacquire,
            lock.release,
            lock.raise_if_lost,
            lambda: context.release_many([lock]),
        ):
            with pytest.raises(LockLost, match=NAME) as caught:
                use()
            assert caught.value.reason is LossReason.TAKEN

    sends_nothing(misuse)
    assert client.get(NAME) == b"another"
    assert 30_000 < client.pttl(NAME) <= 60_000
    assert len(losses) == 1
