"""A loss during a bulk acquire is reported only if the caller gets the lock, and then once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.rig import FINE, GONE, Rig, array
from tests.engine.waiting_rig import WaitingRig
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests.bulk_operations import release_unwanted
from wheel_lock.errors import LossReason
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.locks.bulk import BulkAcquire
from wheel_lock.observe import LostEvent
from wheel_lock.options import lock_options
from wheel_lock.sync.lock import Lock

HELD_FOR_S = 1.0
pytestmark = pytest.mark.rig(batch_size=1)


class Call:
    """A call of ``acquire_many`` for a and b, which travel in a batch each, with a hold limit.

    Attributes:
        lost: The losses that the callback got.
    """

    def __init__(self, rig: Rig, **how: Any) -> None:
        self._rig = rig
        self._lost: list[LostEvent] = []
        options = lock_options(3.0, max_hold=HELD_FOR_S, thread_local=False)
        self.future: Future[None] = Future(lambda: None)

        def new_lock(name: str) -> Lock:
            return Lock(rig.engine, EXCLUSIVE, name, options, self._lost.append)

        together = how.pop("all_or_nothing", False)
        self.bulk = BulkAcquire(rig.engine, ["a", "b"], options, new_lock, together, self.future, None, **how)
        list(self.bulk.submit())
        rig.turn()

    @property
    def lost(self) -> list[tuple[str | bytes, LossReason]]:
        self._rig.drain()
        return [(event.name, event.reason) for event in self._lost]


@pytest.mark.parametrize("lost", ["a", "other"])
def test_all_or_none_is_none_where_one_of_them_is_lost_before_the_last_is_granted(rig: WaitingRig, lost: str) -> None:
    rig.hold("other")
    call = Call(rig, all_or_nothing=True)
    rig.say(FINE)
    rig.go_on(HELD_FOR_S - 0.1)
    rig.engine.leases.mark_lost([next(lease for lease in rig.held if lease.name == lost)], LossReason.KEY_GONE)
    rig.server.take()
    rig.say(FINE)
    assert call.future.done is (lost == "other")
    if call.future.done:
        assert all(call.bulk.outcome().values())
        return
    assert rig.server.one("release_many").names == ["b"]
    rig.say(FINE)
    assert call.future.done
    assert call.bulk.outcome() == {"a": None, "b": None}
    assert call.lost == []


def test_what_a_caller_gives_up_is_not_reported_if_it_is_gone(rig: WaitingRig) -> None:
    call = Call(rig)
    rig.say(FINE, FINE)
    assert call.future.done
    rig.server.take()
    call.bulk.give_up()
    rig.turn()
    rig.say(array(1, GONE), array(1, GONE))
    assert call.lost == []


def test_what_is_granted_to_nobody_is_not_reported_if_it_lapses(rig: WaitingRig) -> None:
    lease = rig.hold("a", max_hold=HELD_FOR_S)
    rig.be_silent(HELD_FOR_S - 0.05)
    rig.post(lambda: release_unwanted(rig.engine.leases, [lease]))
    rig.go_on(0.2)
    assert lease.on_lost is None
    assert rig.losses == []


@pytest.mark.parametrize("blocking", [False, True])
def test_a_lock_that_is_lost_before_its_call_returns_is_reported_when_it_returns(
    rig: WaitingRig, blocking: bool
) -> None:
    call = Call(rig, blocking=blocking)
    rig.say(FINE)
    rig.engine.leases.mark_lost([next(lease for lease in rig.held if lease.name == "a")], LossReason.KEY_GONE)
    rig.turn()
    assert call.lost == []
    rig.say(FINE)
    assert call.future.done
    assert call.lost == [("a", LossReason.KEY_GONE)]
    lock = call.bulk.outcome()["a"]
    assert lock is not None
    assert lock.lost is LossReason.KEY_GONE
    rig.go_on(HELD_FOR_S, rig.agree)
    assert call.lost == [("a", LossReason.KEY_GONE), ("b", LossReason.HOLD_LIMIT)]
