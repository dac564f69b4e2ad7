"""The fence of a quorum lease: the largest of a majority is written by a majority before the grant."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engine.rig import agreement, array, error, failure, integer
from tests.quorum.masters import LONG_S, UNHURRIED_S, Masters
from tests.quorum.rig import QuorumRig, Waiting
from tests.support.redis_server import hung
from tests.support.waiting import eventually
from wheel_lock.errors import LockUnavailable
from wheel_lock.lease import State
from wheel_lock.protocol.keys import fence_key
from wheel_lock.quorum.context import QuorumContext
from wheel_lock.quorum.fences import WriteFence
from wheel_lock.quorum.lease import QuorumLease

HELD = array(900)  # the reply of a master whose lock another one holds


def begin(rig: QuorumRig, limit: float | None = None) -> tuple[QuorumLease, Waiting]:
    lease = rig.lease(1.0, fencing=True)
    return lease, rig.begin(lease, limit=limit)


def draw(rig: QuorumRig, *replies: bytes | None) -> None:
    """Have the masters answer their acquires; those with None say nothing."""
    for server in rig.servers:
        server.one("acquire_fenced")
    rig.say(*replies)


def written(rig: QuorumRig, *numbers: int) -> list[int]:
    """The fences that the masters of these numbers, and no others, are to write."""
    commands = rig.commands()
    assert [number for number, some in enumerate(commands) if some] == list(numbers)
    assert all([command.what for command in some] == ["write_fence"] for some in commands if some)
    return [int(some[0].arguments[3]) for some in commands if some]


def test_a_majority_writes_the_largest_fence_before_the_grant(rig: QuorumRig) -> None:
    lease, future = begin(rig)
    draw(rig, integer(7), None, None)
    assert written(rig) == []
    rig.say(None, integer(9))
    assert written(rig, 0, 1) == [9, 9]
    rig.say(integer(1))
    assert not future.done
    rig.say(None, integer(1))
    assert future.result() == (lease,)
    assert lease.fence == 9


def test_a_vote_that_comes_when_the_lease_is_held_writes_its_fence_too(rig: QuorumRig) -> None:
    lease, future = begin(rig)
    draw(rig, integer(7), integer(9), None)
    rig.say(*[agreement(server.one("write_fence")) for server in rig.servers[:2]])
    assert future.result() == (lease,)
    rig.say(None, None, integer(8))
    assert written(rig, 2) == [9]
    released = rig.ask(lambda future: rig.engine.release(lease, future))
    rig.servers[2].close()
    rig.say(*[agreement(server.one("release")) for server in rig.servers[:2]])
    assert released.done
    rig.reconnect()
    assert not any(command.what == "write_fence" for some in rig.commands() for command in some)


@pytest.mark.parametrize("reply", [integer(0), integer(-1), integer(-2), error("OOM command not allowed")])
def test_without_a_majority_that_has_the_fence_there_is_no_grant(rig: QuorumRig, reply: bytes) -> None:
    lease, future = begin(rig)
    draw(rig, integer(7), integer(9), HELD)
    written(rig, 0, 1)
    rig.say(integer(1), reply)
    assert not (future.done and future.result())
    assert lease.state is State.REFUSED
    first, second, _ = ([command.what for command in some] for some in rig.commands())
    lost = reply in (integer(0), integer(-1))
    assert (first, second) == (["release"], [] if lost else ["release"])


def test_fences_that_cannot_be_written_at_once_end_the_round_once(
    rig: QuorumRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WriteFence, "start", lambda write: write.on_unavailable(ConnectionResetError()))
    _, future = begin(rig)
    begin(rig)  # another one, which is not answered yet
    rig.say(*[integer(7)] * 3)
    failure(future, LockUnavailable)
    assert rig.engine.leases.acquiring == 1


def test_fences_grow_across_majorities_with_the_largest_on_one_master(masters: Masters) -> None:
    ahead = time.time_ns() // 1000 + 10**9  # as if the clock of the first one were a quarter of an hour ahead
    masters.servers[0].admin.set(fence_key(b"order:42"), ahead)

    def take(context: QuorumContext, turn: int) -> int | None:
        make = context.reentrant_lock if turn % 3 else context.lock
        with make("order:42", fencing=True, blocking_timeout=LONG_S) as lock:
            return lock.fence

    with (
        masters.connected(node_timeout=UNHURRIED_S) as one,
        masters.connected(node_timeout=UNHURRIED_S) as other,
        ThreadPoolExecutor(1) as first,
        ThreadPoolExecutor(1) as second,
    ):
        fences: list[int | None] = [ahead]
        for turn in range(15):
            worker, context = ((first, one), (second, other))[turn % 2]
            with hung(*[masters.servers[number % 5] for number in (turn + 3, turn + 4)]):
                fences.append(worker.submit(take, context, turn).result())
            eventually(lambda: masters.count("order:42") == 0)
        assert fences == sorted(set(fences), key=lambda fence: fence or 0)
