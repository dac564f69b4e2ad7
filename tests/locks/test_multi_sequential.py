"""Several locks as one where something goes wrong: asked for name by name, refused for a reason of their own, lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.backend import LONG_S, Backend, Clock, Losses
from tests.support.background import Background
from tests.support.callers import ThreadCaller
from tests.support.event_loops import Run, ended, until
from tests.support.lock_types import NEVER_S, deaf
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockContext, LossReason, TooManyLocks
from wheel_lock.testing import settle

pytestmark = pytest.mark.servers("real")

WAKE_B = "wheel_lock:wake:{b}"

declared = pytest.mark.parametrize("declare_keys", [False, True], ids=["at once", "in parts"])
"""Whether all names are asked for by one script, or one after the other, as where a script may touch one name only."""


def listened_for_b(backend: Backend) -> bool:
    return bool(backend.view.pubsub_numsub(WAKE_B)[0][1] == 1)


def let_hear(proxy: TcpProxy) -> None:
    """Let the answer through that is withheld."""
    proxy.to_client.delay_s = 0.0


async def one_step(proxy: TcpProxy, hear: Callable[[], object]) -> None:
    """Have the library hear something, and the server what it asks then; the answer to that is withheld."""
    asked = len(proxy.seen("to_server"))
    hear()
    await until(lambda: len(proxy.seen("to_server")) > asked)
    proxy.to_client.delay_s = NEVER_S
    told = len(proxy.seen("to_client"))
    proxy.to_server.delay_s = 0.0
    await until(lambda: len(proxy.seen("to_client")) > told)
    proxy.to_server.delay_s = NEVER_S


# Asked for in parts


@pytest.mark.parametrize("way", ["cancelled", "closed"])
def test_giving_up_while_the_granted_part_is_being_undone_harms_nobody(
    run: Run, real: Backend, proxy: TcpProxy, way: str
) -> None:
    timer = real.timer(Clock())
    other = real.context()
    context = real.context_through(proxy, timer=timer, fallback_interval=NEVER_S, declare_keys=True)
    neighbour = real.context(timer=timer)
    bystander, blocking = neighbour.lock("bystander"), other.lock("b")
    bystander.acquire()
    blocking.acquire()

    async def main() -> None:
        task = asyncio.create_task(context.asyncio.multi_lock(["a", "b"]).acquire())
        await until(lambda: context.stats().waiting == 1 and listened_for_b(real), message="it stands in line for b")
        settle(timer)
        await until(lambda: not real.view.exists("a"))
        proxy.to_server.delay_s = NEVER_S
        await one_step(proxy, lambda: real.view.publish(WAKE_B, "0"))
        assert real.view.exists("a"), "the first part of its next try is granted"
        while real.view.exists("a"):  # until it is undone, because the second was refused, and has not heard of it yet
            await one_step(proxy, lambda: let_hear(proxy))
        proxy.to_server.delay_s = 0.0
        if way == "cancelled":
            task.cancel()
        else:
            closing = Background(context.close)
            await until(lambda: context.closed)
        await ended(task)
        proxy.to_client.delay_s = 0.0
        if way == "closed":
            await until(lambda: closing.done)

    run(main())
    settle(timer)
    assert bystander.lost is None
    assert bystander.is_held
    assert bystander.release() is True
    assert blocking.release() is True
    eventually(lambda: real.view.dbsize() == 0, LONG_S, "nothing is left")
    assert neighbour.lock("a").acquire(blocking=False), "the thread lives"


@declared
def test_losses_are_told_where_it_had_to_wait(real: Backend, declare_keys: bool) -> None:
    losses = Losses()
    context, other = real.context(declare_keys=declare_keys), real.context()
    lock = context.multi_lock(["a", "b"], renew_every=0.02, thread_local=False, on_lost=losses)
    with other.lock("b"):
        waiter = Background(lock.acquire)
        eventually(lambda: context.stats().waiting == 1, LONG_S)
    assert waiter.result()
    assert lock.is_held
    real.view.delete("a", "b")
    eventually(lambda: context.stats().held == 0, LONG_S)
    told = [(event.name, event.reason) for event in losses.all_told()]
    assert sorted(told) == [("a", LossReason.KEY_GONE), ("b", LossReason.KEY_GONE)]


@declared
def test_a_refusal_on_the_second_sending_leaves_nothing_of_the_first(
    real: Backend, proxy: TcpProxy, declare_keys: bool
) -> None:
    context = real.context_through(proxy, timer=real.timer(), declare_keys=declare_keys)
    with context.multi_lock(["a", "b"]):
        pass  # from now on the server knows the script, also where no other test has used it
    proxy.drop_replies()
    trying = Background(lambda: context.multi_lock(["a", "b"]).acquire(blocking=False))
    eventually(lambda: real.view.exists("a"), LONG_S, "it is granted, and the reply is lost")
    real.view.set("b", "somebody")
    proxy.heal()  # which resets the connection, so that it is sent again
    assert trying.result() is False
    eventually(lambda: real.view.keys() == [b"b"], LONG_S, "nothing of the first sending is left")
    assert real.view.get("b") == b"somebody"


# Refused for a reason of its own


def test_a_waiter_that_there_is_no_room_for_does_not_fail_those_behind_it(backend: Backend, other: LockContext) -> None:
    context, _ = deaf(backend, max_held=3)
    here, there = ThreadCaller(context), ThreadCaller(context)
    blocking = other.lock("b")
    blocking.acquire()
    first, second = context.lock("x"), context.lock("y")
    first.acquire()
    both = here.begin(context.multi_lock(["a", "b"], blocking_timeout=LONG_S).acquire)
    one = context.lock("b", blocking_timeout=LONG_S)
    behind = there.begin(one.acquire)
    eventually(lambda: listened_for_b(backend), LONG_S)
    settle(context.timer)
    second.acquire()
    blocking.release()
    with pytest.raises(TooManyLocks):
        both.result(LONG_S)
    assert behind.result(LONG_S) is True, "there is room for one"
    assert there.do(one.release)
    here.end()
    there.end()
