"""Waiting for a lock that another caller holds: how long, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.backend import Backend
from tests.support.callers import Caller, NewCaller
from tests.support.proxy import TcpProxy
from wheel_lock import LockContext, LockNotAcquired
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
