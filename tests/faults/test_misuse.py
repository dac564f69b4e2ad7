"""Faults 41 to 43: calls that cannot be right, names that look like something else, and very much at once."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.faults.scene import Losses, held, hold_the_interpreter, own_context, wait_for_renewals, wait_s
from tests.faults.wire import commands, of_kind
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import (
    Lock,
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LossReason,
    WheelLockError,
    WrongThread,
)
from wheel_lock.protocol.names import fence_key

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
    """Calls something and proves that not a byte left the process on its account."""

    def call_and_compare(call: Callable[[], object]) -> None:
        sent = len(commands(proxy))
        call()
        with context.lock("round trip"):  # what the call might have sent would be seen before this
            pass
        assert [command.words for command in commands(proxy)[sent:] if not command.mentions("round trip")] == []

    return call_and_compare


# 41: misuse

TIMES = {
    "zero": 0,
    "negative": -1.0,
    "nan": math.nan,
    "infinite": math.inf,
    "minus infinity": -math.inf,
    "2**63": 2**63,
    "2.0**63": 2.0**63,
    "more than a float holds": 10**400,
    "true": True,
    "text": "30",
    "none": None,
    "decimal": Decimal(3),
    "list": [3],
    "complex": 3j,
}


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        pytest.param(parameter, value, id=f"{parameter}-{what}")
        for parameter in ("timeout", "renew_every", "max_hold", "retry_every")
        for what, value in TIMES.items()
        if value is not None or parameter == "timeout"  # elsewhere None stands for the default
    ],
)
def test_fault_41_a_time_that_makes_no_sense_is_refused_before_any_io(
    context: LockContext, sends_nothing: Callable[[Callable[[], object]], None], parameter: str, value: Any
) -> None:
    """41. A timeout of 0, negative, NaN, 2**63 and the like: a clear error before any I/O."""

    def misuse() -> None:
        with pytest.raises(ValueError, match=parameter):
            context.lock(NAME, **{parameter: value})
        if parameter != "retry_every":
            with pytest.raises(ValueError, match=parameter):
                context.acquire_many([NAME], **{parameter: value})

    sends_nothing(misuse)


@pytest.mark.parametrize("renew_every", [0.988, 1.0, 1.5, 1e6])
def test_fault_41_a_renewal_interval_that_outlasts_the_lease_is_refused(
    context: LockContext, sends_nothing: Callable[[Callable[[], object]], None], renew_every: float
) -> None:
    """41. Renew interval >= timeout (or so close that the lease is no longer believed in): a clear error."""

    def misuse() -> None:
        with pytest.raises(ValueError, match="renew_every"):
            context.lock(NAME, timeout=1.0, renew_every=renew_every)

    sends_nothing(misuse)


@pytest.mark.parametrize("value", [v for v in TIMES.values() if v is not None], ids=[k for k in TIMES if k != "none"])
def test_fault_41_an_extension_that_makes_no_sense_does_not_touch_the_key(
    redis_server: RedisServer,
    context: LockContext,
    sends_nothing: Callable[[Callable[[], object]], None],
    value: Any,
) -> None:
    """41. ... because PEXPIRE with a negative value deletes the key."""
    client = redis_server.client()
    lock = context.lock(NAME, timeout=30.0)
    lock.acquire()

    def misuse() -> None:
        for replace in (False, True):
            with pytest.raises(ValueError, match="additional_time"):
                lock.extend(value, replace_ttl=replace)

    sends_nothing(misuse)
    assert lock.is_held
    assert client.get(NAME) == lock.token
    assert lock.extend(1e-9)  # the least there is: a millisecond, not nought
    assert lock.is_held


WAITS = {name: TIMES[name] for name in ("nan", "infinite", "more than a float holds", "true", "text", "list")}


@pytest.mark.parametrize("value", [*WAITS.values(), -1.0], ids=[*WAITS, "negative"])
def test_fault_41_a_waiting_time_that_makes_no_sense_is_refused(
    context: LockContext, sends_nothing: Callable[[Callable[[], object]], None], value: Any
) -> None:
    """41. The same for how long to wait, said when the lock is made or when it is acquired."""

    def misuse() -> None:
        with pytest.raises(ValueError, match="blocking_timeout"):
            context.lock(NAME).acquire(blocking_timeout=value)
        with pytest.raises(ValueError, match="blocking_timeout"):
            context.lock(NAME, blocking_timeout=value)

    sends_nothing(misuse)


@pytest.mark.parametrize("value", WAITS.values(), ids=WAITS.keys())
def test_fault_41_a_delay_that_makes_no_sense_is_refused(context: LockContext, value: Any) -> None:
    """41. The same for the timer's own timeouts, where a negative delay means at once, as in Netty."""
    with pytest.raises(ValueError, match="delay"):
        context.timer.new_timeout(print, value)
    assert context.timer.pending == 0


@pytest.mark.parametrize("timeout", [75 * 86400.0, 365 * 86400.0, 1e9], ids=["75 days", "a year", "the longest"])
def test_fault_41_a_very_long_timeout_that_is_accepted_works(redis_server: RedisServer, timeout: float) -> None:
    """41. What is not refused must work: the thread that waits for a renewal in weeks must not break on that."""
    client = redis_server.client()
    losses = Losses()
    with own_context(redis_server) as context:
        lock = context.lock(NAME, timeout=timeout, on_lost=losses)
        assert lock.acquire()
        wait_s(0.3)
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


def test_fault_41_a_second_release_is_refused_before_any_io(
    redis_server: RedisServer, context: LockContext, sends_nothing: Callable[[Callable[[], object]], None]
) -> None:
    """41. Double release - also when somebody else holds the name by then, who keeps it."""
    lock = context.lock(NAME, timeout=30.0)
    for use in (lock.release, lambda: lock.extend(1.0), lock.reacquire, lock.raise_if_lost):
        with pytest.raises(LockNotHeld):
            use()
    lock.acquire()
    lock.release()
    redis_server.client().set(NAME, "another")

    def misuse() -> None:
        for use in (lock.release, lambda: lock.extend(1.0), lock.reacquire, lock.raise_if_lost):
            with pytest.raises(LockNotHeld, match=NAME):
                use()
        with pytest.raises(LockNotHeld):
            context.release_many([lock])

    sends_nothing(misuse)
    assert redis_server.client().get(NAME) == b"another"


def test_fault_41_the_same_lock_twice_in_one_bulk_is_released_once(context: LockContext) -> None:
    """41. Double release within one call."""
    lock = context.lock(NAME)
    lock.acquire()
    context.release_many([lock, None, lock])
    assert not lock.is_held
    assert context.stats().released == 2  # with the warm-up's


def test_fault_41_a_second_acquire_through_one_object_is_refused(
    context: LockContext, sends_nothing: Callable[[Callable[[], object]], None]
) -> None:
    """41. This kind of lock is not reentrant, and says so in place of waiting for itself."""
    with context.lock(NAME, timeout=30.0) as lock:
        token = lock.token

        def misuse() -> None:
            with pytest.raises(LockAlreadyHeld, match=NAME):
                lock.acquire(blocking=False)

        sends_nothing(misuse)
        assert lock.token == token


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
    lock = context.lock(NAME, timeout=1.0, renew_every=0.1, on_lost=losses)
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


# 42: names

HOSTILE: dict[str, str | bytes] = {
    "crlf": "a\r\nDEL b\r\n",
    "protocol": b"*1\r\n$8\r\nFLUSHALL\r\n",
    "nul": "a\0b",
    "only nul": b"\0",
    "braces": "{",
    "closed braces": "}{",
    "empty tag": "{}x",
    "tag": "a{b}c{d}",
    "nested": "{{a}}",
    "unclosed": "{a",
    "open end": "a}",
    "not utf-8": b"\xff\xfe\x80",
    "surrogate bytes": b"\xed\xa0\x80",
    "unicode": "z\u00e4hler \U0001f512 \u202e",
    "percent": "%s %d {0} {name} \\x00",
    "glob": "*?[a]",
    "lua": "'] return redis.call('flushall') --",
    "blank": " ",
    "longest": "n" * 512,
    "longest in bytes": "\u00e4" * 256,
    "number": "0",
    "minus": "-1",
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_fault_42_a_hostile_name_is_sent_as_exactly_its_bytes(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture, name: str | bytes
) -> None:
    """42. Names with CRLF, NUL, braces: exact bytes, in every command there is."""
    client = redis_server.client()
    key = name if isinstance(name, bytes) else name.encode()
    client.set("canary", "alive")
    losses = Losses()
    with own_context(redis_server) as context:
        for fencing, companions in ((False, set()), (True, {fence_key(key)})):
            lock = context.lock(name, timeout=1.0, renew_every=0.02, fencing=fencing, on_lost=losses)
            assert lock.acquire()
            assert set(client.keys()) == {b"canary", key, *companions}
            assert client.get(key) == lock.token
            assert lock.locked()
            assert lock.owned()
            wait_for_renewals(lock, 2)
            assert lock.extend(1.0)
            assert not context.lock(name).acquire(blocking=False)
            lock.release()
            assert client.get(key) is None

        bulk = context.acquire_many([name, b"canary"], 1.0)
        assert bulk[b"canary"] is None
        assert bulk[name] is not None
        context.release_many(bulk.values())

        # A loss, which is where names get into messages and logs.
        lock = context.lock(name, timeout=1.0, renew_every=0.02, on_lost=losses)
        lock.acquire()
        token = lock.token
        assert token is not None
        client.delete(key)
        eventually(lambda: losses)
        assert losses.names == [name]
        with pytest.raises(LockLost) as caught:
            lock.release()
        assert caught.value.lock_name == name
        texts = [str(caught.value), repr(lock), *eventually(lambda: [r.getMessage() for r in caplog.records])]
        for text in texts:
            assert text.isprintable(), text
            assert text.isascii(), text
            assert token.decode() not in text
    assert client.get("canary") == b"alive"


BAD_NAMES: dict[str, Any] = {
    "lone surrogate": "a\ud800b",
    "only a surrogate": "\udfff",
    "empty": "",
    "empty bytes": b"",
    "513 bytes": "n" * 513,
    "513 bytes of utf-8": "\u00e4" * 256 + "x",
    "1 MB": "n" * (1 << 20),
    "1 MB of bytes": b"\0" * (1 << 20),
    "none": None,
    "number": 42,
    "bytearray": bytearray(b"abc"),
    "memoryview": memoryview(b"abc"),
    "list": ["abc"],
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
def test_fault_42_a_name_that_cannot_be_is_refused_before_any_io(
    context: LockContext, sends_nothing: Callable[[Callable[[], object]], None], name: Any
) -> None:
    """42. Lone surrogates, 1 MB: ValueError, and not a word too many about it."""

    def misuse() -> None:
        for call in (
            lambda: context.lock(name),
            lambda: context.acquire_many(["good", name, "good too"]),
        ):
            with pytest.raises(ValueError, match="name") as caught:
                call()
            assert len(str(caught.value)) < 300
            assert str(caught.value).isprintable()

    sends_nothing(misuse)


@pytest.mark.parametrize("token", ["a\ud800b", "", "t" * 513, 42], ids=["surrogate", "empty", "513 bytes", "number"])
def test_fault_42_a_token_that_cannot_be_is_refused_before_any_io(
    context: LockContext, sends_nothing: Callable[[Callable[[], object]], None], token: Any
) -> None:
    """42. The same for tokens that a caller brings along."""

    def misuse() -> None:
        with pytest.raises(ValueError, match="token"):
            context.lock(NAME).acquire(token=token)

    sends_nothing(misuse)


def test_fault_42_a_hostile_token_is_stored_as_exactly_its_bytes(redis_server: RedisServer) -> None:
    """42. ... and those that can be are what is stored, renewed and compared."""
    client = redis_server.client()
    with own_context(redis_server) as context:
        for token in (b"\r\n", b"\0", b"\xff" * 512, b"$-1\r\n"):
            lock = context.lock(NAME, timeout=1.0, renew_every=0.05)
            assert lock.acquire(token=token)
            assert client.get(NAME) == token
            wait_for_renewals(lock, 2)
            lock.release()
            assert client.get(NAME) is None


def test_fault_42_all_hostile_names_in_one_batch(redis_server: RedisServer) -> None:
    """42. Side by side in one script call no name can be taken for the end of another."""
    client = redis_server.client()
    losses = Losses()
    with own_context(redis_server) as context:
        found = context.acquire_many(HOSTILE.values(), 1.0, renew_every=0.05, on_lost=losses)
        locks = {name: lock for name, lock in found.items() if lock is not None}
        assert len(locks) == len(HOSTILE)
        eventually(lambda: all(lock.renewals >= 3 for lock in locks.values()))
        robbed = HOSTILE["crlf"]
        client.delete(robbed)
        eventually(lambda: losses)
        eventually(lambda: all(lock.renewals >= 6 for name, lock in locks.items() if name != robbed))
        assert losses.names == [robbed]
        for name, lock in locks.items():
            assert lock.is_held == (name != robbed)
        context.release_many(lock for lock in locks.values() if lock.is_held)
        assert client.keys() == []


# 43: very much at once


def test_fault_43_ten_thousand_leases_due_at_once_are_drained(redis_server: RedisServer, proxy: TcpProxy) -> None:
    """43. 10,000 leases due in one tick: drained, in calls of bounded size, while everything else goes on."""
    client = redis_server.client()
    losses = Losses()
    with own_context(proxy.url) as context:
        bystander = context.lock("bystander", timeout=2.0, renew_every=0.2, on_lost=losses)
        bystander.acquire()
        names = [f"many:{number}" for number in range(10_000)]
        locks = held(context.acquire_many(names, 3.0, on_lost=losses))
        # Nothing can run until every one of them is due, so all are due in the same step.
        hold_the_interpreter(1.4)
        batches = context.stats().batches
        with context.lock("in between", blocking=False):
            pass
        eventually(lambda: all(lock.renewals >= 1 for lock in locks))
        assert not losses
        assert all(lock.is_held for lock in locks)
        assert context.stats().overdue == 0
        assert context.stats().batches - batches < 200
        renewals = of_kind("renew", commands(proxy))
        assert max(len(command.words) for command in renewals) <= 3 + 1 + 2 * 500

        # They do not stay together: the next round is spread again, and nothing of it is late.
        renewals_then: dict[Lock, int] = {lock: lock.renewals for lock in locks}
        eventually(lambda: all(lock.renewals > renewals_then[lock] for lock in locks))
        assert bystander.renewals >= 3
        assert not losses
        context.release_many([*locks, bystander])
        assert client.keys() == []


def test_fault_43_ten_thousand_leases_lost_at_once_are_told_once_each(redis_server: RedisServer) -> None:
    """43. The same with an end: all are lost in one step, and each is told, once, while another lease goes on."""
    client = redis_server.client()
    losses = Losses()
    with own_context(redis_server) as context:
        bystander = context.lock("bystander", timeout=30.0, renew_every=0.1)
        bystander.acquire()
        names = [f"many:{number}" for number in range(10_000)]
        locks = held(context.acquire_many(names, 1.0, on_lost=losses))
        hold_the_interpreter(1.5)
        assert not any(lock.is_held for lock in locks)
        eventually(lambda: len(losses) == 10_000)
        wait_for_renewals(bystander, 3)
        assert sorted(map(str, losses.names)) == sorted(names)
        # If the thread was held up in the middle of a renewal it is the server that says so.
        assert {lock.lost for lock in locks} <= {LossReason.NOT_CONFIRMED, LossReason.KEY_GONE}
        assert context.stats().held == 1
        assert client.keys("many:*") == []
        bystander.release()
