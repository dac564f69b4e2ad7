"""What a failure of the library's own code costs: the lease, the request, the node or the engine that it is about."""

from __future__ import annotations

import logging

import pytest

from tests.engine.rig import BUG, FINE, NIL, OK, TICK_S, Rig, add_stranger, breaking, integer, is_untouched
from tests.engine.waiting_rig import WaitingRig
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.flow import Batch, Flow
from wheel_lock.engine.renewal.renewer import RenewalGroup
from wheel_lock.engine.waiting.wait_queue import WaitQueue
from wheel_lock.engine.waiting.waiter import Waiter
from wheel_lock.errors import LockUnavailable, LossReason, WheelLockError
from wheel_lock.lease import Event, State
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.options import lock_options
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.runtime.notifier import NOTIFIER

INTERNAL = LossReason.INTERNAL_ERROR


def fail(*arguments: object, **more: object) -> None:
    raise BUG


@pytest.fixture
def stranger(failing: Rig) -> Engine:
    return add_stranger(failing)


@pytest.mark.parametrize("event", [Event.RELEASED, Event.GRANTED, Event.CONFIRMED, Event.REJECTED])
def test_a_step_that_is_not_legal_costs_that_lease(
    failing: Rig, stranger: Engine, caplog: pytest.LogCaptureFixture, event: Event
) -> None:
    affected, other = failing.hold("affected"), failing.hold("other")
    failing.post(lambda: affected.transition(event))
    assert affected.state is State.LOST
    assert failing.reasons == [("affected", INTERNAL)]
    assert failing.is_valid(other)
    assert is_untouched(stranger)
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert f"a lease that is HELD cannot take {event.name} (lock 'affected')" in record.getMessage()
    assert "test_failure_domains.py" in record.getMessage()  # the stack of whoever has asked for it
    failing.go_on(5.0, failing.agree)
    assert failing.is_valid(other)


def test_a_command_that_cannot_be_encoded_costs_its_caller(failing: Rig, stranger: Engine) -> None:
    other = failing.hold("other")
    with breaking(type(EXCLUSIVE), "acquire"):
        attempt = failing.acquire("affected")
    assert isinstance(attempt.future.error, WheelLockError)
    assert attempt.future.error.__cause__ is BUG
    assert attempt.lease.state is State.REFUSED
    assert failing.acquiring == 0
    assert failing.connector.attempts == 1  # nothing was sent, so the connection is as good as before
    failing.go_on(5.0, failing.agree)
    assert failing.is_valid(other)
    assert is_untouched(stranger)
    failing.hold("affected")


@pytest.mark.parametrize(("where", "method"), [(type(EXCLUSIVE), "parse_acquire"), (LeaseTable, "grant")])
def test_a_reply_that_cannot_be_dealt_with_costs_its_request_and_the_connection(
    failing: Rig, stranger: Engine, where: type, method: str
) -> None:
    other = failing.hold("other")
    with breaking(where, method):
        affected, behind = failing.acquire("affected"), failing.acquire("behind")
        failing.say(OK, OK)
    assert failing.acquiring == 1
    assert isinstance(affected.future.error, WheelLockError)
    assert not behind.future.done  # it is asked for again on the next connection

    released: list[str] = []

    def agree() -> None:
        for command in failing.server.take():
            released.extend(command.names if command.what == "release_many" else ())
            failing.server.say(FINE if command.what != "SET" else OK)

    failing.go_on(1.0, agree)
    assert released == ["affected"]  # it may have been granted
    assert behind.future.result()
    assert failing.is_valid(other)
    assert is_untouched(stranger)
    assert failing.losses == []


def test_a_first_try_that_fails_behind_its_end_is_counted_down_once(failing: WaitingRig) -> None:
    failing.wait("a")
    failing.acquire("b")
    with breaking(LeaseTable, "grant"):
        failing.say(OK)
    assert failing.acquiring == 1


@pytest.mark.parametrize("adopted", [True, False])
def test_a_grant_of_what_has_ended_meanwhile_leaves_nothing_held(rig: Rig, adopted: bool) -> None:
    leases = [rig.lease(name) for name in "ab"]
    if adopted:  # from the direct path, where it was released by force
        leases[0].transition(Event.GRANTED)
        leases[0].deadline = rig.now + 2.9
        leases[0].loss = LossReason.KEY_GONE
        rig.post(lambda: rig.engine.leases.adopt_grant(leases[0], rig.now))
    else:
        leases[0].transition(Event.REJECTED)
        rig.post(lambda: rig.engine.leases.grant(leases, lock_options(3.0), rig.now))
    assert leases[0].state > State.EXTENDING
    assert not any(map(rig.is_valid, leases))
    assert not rig.held
    rig.drain()
    rig._failures.seen.clear()


def test_a_release_that_fails_is_no_loss(failing: Rig) -> None:
    with breaking(type(EXCLUSIVE), "parse_release"):
        future = failing.release(failing.hold("a"))
        failing.reply("release", integer(1))
    assert isinstance(future.error, WheelLockError)
    assert failing.losses == []


def test_a_renewal_whose_reply_cannot_be_dealt_with_costs_the_node(failing: Rig, stranger: Engine) -> None:
    held = [failing.hold(name) for name in "ab"]
    failing.go_on(1.0)
    with breaking(Flow, "confirmed"):
        failing.say(FINE)
    assert sorted(failing.reasons) == [("a", INTERNAL), ("b", INTERNAL)]
    assert [lease.state for lease in held] == [State.LOST] * 2
    assert is_untouched(stranger)
    failing.hold("a")
    failing.go_on(5.0, failing.agree)
    assert failing.stats().held == 1


def test_what_is_due_and_cannot_be_renewed_costs_the_node(failing: Rig, stranger: Engine) -> None:
    failing.hold("a")
    with breaking(RenewalGroup, "due"):
        failing.go_on(1.0 + TICK_S)
    assert failing.reasons == [("a", INTERNAL)]
    assert is_untouched(stranger)
    again = failing.hold("a")
    failing.go_on(5.0, failing.agree)
    assert failing.is_valid(again)


@pytest.mark.parametrize("method", ["follows", "ended"])
def test_a_waiter_that_fails_costs_the_waits_and_no_lease(
    failing: WaitingRig, stranger: Engine, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    holder, waits = failing.hold_first("a"), failing.wait("a")
    monkeypatch.setattr(WaitQueue, method, fail)
    release = failing.release(holder.lease)
    failing.agree()
    assert release.result() is None
    assert isinstance(waits.error, WheelLockError)
    assert is_untouched(stranger)


def test_a_waiter_that_fails_ends_with_the_error_outside_of_queues_too(failing: WaitingRig) -> None:
    with breaking(Waiter, "refuse"):
        wait = failing.wait("a", blocking=False)
        failing.say(NIL)
    assert isinstance(wait.error, WheelLockError)


@pytest.mark.parametrize("broken", ["direct", "leases", "router", "wait_queues"])
def test_a_part_whose_end_fails_keeps_no_other_one_from_ending(failing: WaitingRig, broken: str) -> None:
    holder, waits, server = failing.hold_first("a"), failing.wait("a"), failing.server
    with breaking(type(getattr(failing.engine, broken)), "end"):
        failing.end(End.DIED)
    server.take()
    assert (holder.lease.state is State.LOST) == (broken != "leases")
    assert server.hung_up == (broken != "router")
    assert isinstance(waits.error, LockUnavailable)  # by its part, or by the node at which it tries


def test_a_domain_that_fails_itself_hands_over_to_the_one_above(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[object] = []

    class Domain:
        def __init__(self, above: FailureDomain | None, *, able: bool) -> None:
            self.above = above
            self._able = able

        def crashed(self, error: Exception) -> None:
            failed.append(self)
            if not self._able:
                fail()

    top = Domain(None, able=False)
    middle = Domain(top, able=False)
    guarded(Domain(middle, able=False), fail)
    assert failed[1:] == [middle, top]
    guarded(None, fail)
    assert NOTIFIER.drain(10.0)
    assert len([record for record in caplog.records if "survived" in record.getMessage()]) == 5


def test_one_batch_that_fails_among_several_costs_each_lease_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig(batch_size=2) as rig:
        leases = rig.hold_many([f"lock:{number}" for number in range(6)], 3.0)
        encode, calls = Batch.encode, iter([fail])
        monkeypatch.setattr(Batch, "encode", lambda batch, capability: next(calls, encode)(batch, capability))
        rig.go_on(1.5)
        rig.go_on(1.0, rig.agree)
        assert [lease.state for lease in leases] == [State.LOST] * 6
        assert sorted(event.name for _, event in rig.losses) == sorted(str(lease.name) for lease in leases)
        assert "renew" not in [command.what for server in rig.servers for command in server.take()]
        rig.failures.clear()


def test_a_failure_leaves_no_count_below_nothing(failing: Rig) -> None:
    failing.launch.slow = True
    attempts = [failing.acquire(name) for name in "abc"]
    failing.post(fail)
    for attempt in attempts:
        failing.post(attempt.request.give_up)
    assert failing.acquiring == 0
    failing.launch.slow = False
    failing.launch.go_on()
