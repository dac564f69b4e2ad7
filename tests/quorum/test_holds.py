"""Holds on a quorum of five masters: reentrant ones while masters fail, and all of them while the process forks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.faults.sent_commands import commands
from tests.quorum.masters import UNHURRIED_S, Masters, connect
from tests.support.backend import Losses, token_of
from tests.support.background import Background, in_a_fork
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockNotHeld, LockTimeout, LockUnavailable, LossReason
from wheel_lock.quorum.context import QuorumContext
from wheel_lock.quorum.locks import QuorumReentrantLock

pytestmark = pytest.mark.slow

LONG_S = 30.0
"""A bound that only a bug or a hopelessly busy machine exceeds."""
TIMEOUT_S = 2.0
SHORT: dict[str, Any] = {"timeout": TIMEOUT_S, "renew_every": 0.25}

forks = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="needs os.fork")


@pytest.fixture
def context(masters: Masters) -> Iterator[QuorumContext]:
    with masters.connected(close_timeout=1.0, node_timeout=UNHURRIED_S, response_timeout=1.0) as context:
        yield context


@pytest.fixture
def rival(masters: Masters) -> Iterator[QuorumContext]:
    """A context that stands for another process."""
    with masters.connected(close_timeout=1.0, node_timeout=UNHURRIED_S) as context:
        yield context


def strike(masters: Masters, number: int, how: str) -> None:
    getattr(masters.servers[number], how)()


def recover(masters: Masters) -> None:
    """Have all of them run; those that were killed have nothing on them, the others what they had."""
    for server in masters.servers:
        server.resume() if server.alive else server.start()


def acquired_by(context: QuorumContext, name: str) -> bool:
    """Whether somebody else gets the lock, who releases it at once."""
    lock = context.lock(name, timeout=TIMEOUT_S, blocking_timeout=0.2)
    try:
        return lock.acquire() and lock.release()
    except (LockLost, LockTimeout, LockUnavailable):
        return False


def refused_to(context: QuorumContext, name: str) -> bool:
    return not context.lock(name, timeout=TIMEOUT_S).acquire(blocking=False)


def renewed_again(lock: QuorumReentrantLock, times: int = 2) -> None:
    renewals = lock.renewals
    eventually(lambda: lock.renewals >= renewals + times, LONG_S)


@pytest.mark.parametrize("ways", [("kill", "pause"), ("restart", "restart")], ids=["down", "empty"])
def test_nested_holds_outlive_two_masters_and_end_with_the_outermost(
    masters: Masters, context: QuorumContext, rival: QuorumContext, ways: tuple[str, str]
) -> None:
    told = Losses()
    terms: dict[str, Any] = {**SHORT, "on_lost": told}
    with context.reentrant_lock("order:42", **terms) as outer:
        eventually(lambda: masters.count("order:42") == 5)
        strike(masters, 0, ways[0])
        with context.reentrant_lock("order:42", **terms) as middle:
            assert (outer.count, middle.count) == (2, 2)
            strike(masters, 3, ways[1])
            with context.reentrant_lock("order:42", **terms) as inner:
                assert inner.count == 3
                renewed_again(outer, 1)
                assert refused_to(rival, "order:42")
            assert (outer.count, outer.is_held, inner.is_held) == (2, True, True)
            assert middle.release() is False
            assert middle.acquire()
            assert refused_to(context, "order:42")  # a plain lock of the same name
        renewed_again(outer, 1)
        assert outer.count == 1
        assert outer.is_held
        assert outer.owned()
        assert refused_to(rival, "order:42")
    assert outer.count == 0
    assert not outer.is_held
    assert told.all_told() == []
    recover(masters)
    eventually(lambda: masters.count("order:42") == 0, LONG_S)
    eventually(lambda: acquired_by(rival, "order:42"), LONG_S)
    assert context.stats().lost == 0


@forks
def test_a_forked_child_has_nothing_of_a_quorum_and_its_parent_goes_on(masters: Masters, rival: QuorumContext) -> None:
    told = Losses()
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(server.port)) for server in masters.servers]
        context = stack.enter_context(LockContext.quorum([redis.Redis(port=proxy.port) for proxy in proxies]))
        connect(context)
        terms: dict[str, Any] = {"timeout": 30.0, "renew_every": 0.1, "on_lost": told}
        plain, nested = context.lock("plain", **terms), context.reentrant_lock("nested", **terms)
        for lock in (plain, nested, nested):
            assert lock.acquire()
        tokens = [token_of(plain), token_of(nested)]
        blocking = [rival.lock(name, timeout=30.0) for name in ("for a thread", "for a task")]
        for lock in blocking:
            assert lock.acquire()

        def wait() -> bool:
            with context.reentrant_lock("for a thread", **terms) as lock:
                return lock.is_held

        async def wait_in_task() -> bool:
            async with context.asyncio.lock("for a task", **terms) as lock:
                return lock.is_held

        waiting = [Background(wait), Background(lambda: asyncio.run(wait_in_task()))]
        eventually(lambda: context.stats().waiting == 2, LONG_S)
        eventually(lambda: all(masters.count(name) == 5 for name in ("plain", "nested")), LONG_S)
        known = [{command.connection for command in commands(proxy)} for proxy in proxies]

        def child() -> None:
            assert (plain.is_held, plain.lost, plain.token) == (False, LossReason.FORKED, None)
            assert (nested.is_held, nested.lost, nested.count) == (False, LossReason.FORKED, 0)
            assert context.held() == []
            assert (context.stats().held, context.stats().waiting, context.stats().connects) == (0, 0, 0)
            for lock in (plain, nested):
                with pytest.raises((LockLost, LockNotHeld)):
                    lock.release()
                with pytest.raises((LockLost, LockNotHeld)):
                    lock.extend(60.0)
                assert not lock.acquire(blocking=False)
            with context.reentrant_lock("child", timeout=30.0, renew_every=0.1) as own, own:
                assert own.count == 2
                renewed_again(own, 5)
            with context.lock("child", timeout=30.0):
                pass
            assert context.lock("child's last", timeout=30.0).acquire()
            context.close()

        in_a_fork(child, LONG_S)
        for lock in (plain, nested):
            renewals = lock.renewals
            eventually(lambda: lock.renewals >= renewals + 3, LONG_S)  # noqa: B023
            assert lock.is_held
            assert lock.owned()
        assert (nested.count, context.stats().waiting) == (2, 2)
        for proxy, connections in zip(proxies, known, strict=True):
            by_others = [command for command in commands(proxy) if command.connection not in connections]
            assert by_others, "the child has connections of its own"
            assert not any(command.mentions(token) for command in by_others for token in tokens)
        assert not any(waiter.done for waiter in waiting)
        for lock in blocking:
            lock.release()
        assert [waiter.result(LONG_S) for waiter in waiting] == [True, True]
        assert [nested.release(), nested.release()] == [False, True]
        assert plain.release()
        assert context.stats().lost == 0
        assert told.all_told() == []
    eventually(lambda: masters.count("plain") + masters.count("nested") + masters.count("child") == 0, LONG_S)
    assert masters.count("child's last") == 0
