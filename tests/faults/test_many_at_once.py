"""Fault 43: very much at once."""

from __future__ import annotations

import pytest

from tests.faults.sent_commands import commands, of_kind
from tests.faults.support import Losses, held, hold_the_interpreter, own_context, wait_for_renewals
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import (
    Lock,
    LossReason,
)

pytestmark = pytest.mark.slow


def test_fault_43_ten_thousand_leases_due_at_once_are_drained(redis_server: RedisServer, proxy: TcpProxy) -> None:
    """43. 10,000 leases due in one tick: drained, in calls of bounded size, while everything else goes on."""
    client = redis_server.client()
    losses = Losses()
    with own_context(proxy.url) as context:
        bystander = context.lock("bystander", timeout=5.0, renew_every=0.2, on_lost=losses)
        bystander.acquire()
        names = [f"many:{number}" for number in range(10_000)]
        locks = held(context.acquire_many(names, 5.0, renew_every=1.0, on_lost=losses))
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
        locks = held(context.acquire_many(names, 2.0, on_lost=losses))
        hold_the_interpreter(2.5)
        assert not any(lock.is_held for lock in locks)
        eventually(lambda: len(losses) == 10_000)
        wait_for_renewals(bystander, 3)
        assert sorted(map(str, losses.names)) == sorted(names)
        # If the thread was held up in the middle of a renewal it is the server that says so.
        assert {lock.lost for lock in locks} <= {LossReason.NOT_CONFIRMED, LossReason.KEY_GONE}
        assert context.stats().held == 1
        assert client.keys("many:*") == []
        bystander.release()
