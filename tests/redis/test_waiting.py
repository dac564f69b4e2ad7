"""Waiting for a lock that another caller holds: how long, how often, and when a WARNING says so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend, Clock
from tests.support.callers import Caller, NewCaller
from tests.support.logged import logged
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import ContextClosed, LockContext, LockNotAcquired
from wheel_lock.protocol.scripts import ACQUIRE

pytestmark = pytest.mark.servers("real")


@pytest.fixture
def taken(backend: Backend) -> str:
    """The name of a lock that another caller holds."""
    backend.view.set("order:42", "another", px=60_000)
    return "order:42"


def attempts(proxy: TcpProxy, name: str) -> int:
    """How many acquires of a name have been sent: plain, and by the script, which replies more."""
    key, sent = b"$%d\r\n%b\r\n" % (len(name), name.encode()), proxy.seen("to_server")
    by_script = [form.sha1.encode() + b"\r\n$1\r\n1\r\n" + key for form in (ACQUIRE.plain, ACQUIRE.flagged)]
    return sum(map(sent.count, [b"SET\r\n" + key, *by_script]))


# How long and how often


def test_one_try_without_blocking(
    proxy: TcpProxy, through_proxy: LockContext, new_caller: NewCaller, taken: str
) -> None:
    locks = new_caller(through_proxy).locks
    assert not locks.lock(taken).acquire(blocking=False)
    assert not locks.lock(taken, blocking=False).acquire()
    assert not locks.lock(taken, blocking_timeout=0.0).acquire()
    assert not locks.lock(taken).acquire(blocking=True, blocking_timeout=0)
    assert attempts(proxy, taken) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5,), "blocking must be True or False, not 5; a limit is blocking_timeout=5"),
        ((0,), "blocking must be True or False, not 0"),
        ((False, 5), "blocking_timeout limits a wait, and with blocking=False there is none"),
        ((False, 0), "blocking_timeout limits a wait"),
    ],
)
def test_a_limit_in_the_wrong_place_is_refused(me: Caller, arguments: tuple[Any, ...], message: str) -> None:
    for lock in (me.locks.lock("order:42"), me.locks.multi_lock(["order:42"]), me.locks.reentrant_lock("order:42")):
        with pytest.raises(ValueError, match=message):
            lock.acquire(*arguments)
    with pytest.raises(ValueError, match="blocking must be True or False, not 5"):
        me.locks.lock("order:42", blocking=5)


def test_max_attempts(proxy: TcpProxy, through_proxy: LockContext, new_caller: NewCaller, taken: str) -> None:
    lock = new_caller(through_proxy).locks.lock(taken, max_attempts=3, retry_every=0.01)
    assert not lock.acquire()
    assert attempts(proxy, taken) == 3
    with pytest.raises(LockNotAcquired), lock:
        pass
    assert attempts(proxy, taken) == 6


# The WARNING about waits that last for long, on a clock that is moved by hand


Stepped = tuple[LockContext, Clock]


@pytest.fixture
def stepped(backend: Backend) -> Stepped:
    return backend.stepped_context(label="billing")


@pytest.fixture
def rival(backend: Backend) -> LockContext:
    return backend.context(owner="billing@host-7", readable_owner=True)


@pytest.mark.parametrize("kind", ["lock", "fair_lock", "polling", "multi_lock", "polling multi_lock"])
def test_ten_seconds_are_said_once_with_the_holder(
    stepped: Stepped, rival: LockContext, new_caller: NewCaller, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    context, clock = stepped
    held = (rival.fair_lock if kind == "fair_lock" else rival.lock)("order:42", 60.0)
    held.acquire()
    terms: dict[str, Any] = {"retry_every": 0.5} if "polling" in kind else {}
    waits = []
    for _ in range(2):
        locks = new_caller(context).locks
        if "multi_lock" in kind:
            lock = locks.multi_lock(["free", "order:42"], **terms)
        else:
            lock = (locks.fair_lock if kind == "fair_lock" else locks.lock)("order:42", **terms)
        waits.append(lock.acquire.begin())
    with logged() as log:
        clock.advance(9.5)
        assert not log.said("waiting for")
        clock.advance(2.0)
        eventually(lambda: log.said("waiting for"), LONG_S)
        for _ in range(20):
            clock.advance(1.0)
        [text] = log.said("waiting for")
    assert text.startswith("waiting for 'order:42' for 1")
    assert "held by billing@host-7 for another" in text
    record: Any = next(record for record in caplog.records if getattr(record, "event", None) == "long_wait")
    assert (record.event, record.context, record.lock_name, record.locks) == ("long_wait", "billing", "order:42", 1)
    holder = held.holder()
    assert holder is not None
    assert record.token_id == holder.token_id
    context.close()
    assert all(isinstance(wait.exception(LONG_S), ContextClosed) for wait in waits)


def test_a_wait_that_has_ended_and_a_candidate_who_stands_by_are_not_said(
    stepped: Stepped, rival: LockContext, new_caller: NewCaller
) -> None:
    context, clock = stepped
    held = rival.lock("order:42", 60.0)
    held.acquire()
    rival.lock("leader", 60.0).acquire()
    waits = new_caller(context).locks.lock("order:42").acquire.begin()
    with context.leader("leader"), logged() as log:
        eventually(lambda: context.stats().waiting == 2)
        clock.advance(9.0)
        held.release()
        assert waits.result(LONG_S)
        clock.advance(30.0)
        assert not log.said("waiting for")
