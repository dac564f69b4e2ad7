"""What ends a lease between two renewals, and what the server's replies to renewals and checks mean."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.engine.rig import FINE, NIL, START, TICK_S, Rig, array, error, names
from tests.engine.waiting_rig import Wait, WaitingRig
from tests.support.logged import logged
from wheel_lock.block import Block
from wheel_lock.engine.future import Future
from wheel_lock.engine.renewal.retries import Overdue
from wheel_lock.engine.waiting.many import MultiLockWaiter
from wheel_lock.errors import LockServerError, LockTimeout, LossReason
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types import READ


@pytest.mark.parametrize("extended", [False, True])
def test_the_key_of_a_lease_at_its_hold_limit_expires_by_itself_unless_it_was_extended(
    rig: Rig, extended: bool
) -> None:
    lease = rig.hold("a", max_hold=5.0)
    if extended:
        rig.extend(lease, 600.0)
        rig.agree()
    sent: list[str] = []
    rig.go_on(4.9, lambda: sent.extend(command.what for command in rig.server.agree()))
    sent.clear()
    rig.go_on(3.0, lambda: sent.extend(command.what for command in rig.server.agree()))
    assert lease.loss is LossReason.HOLD_LIMIT
    assert sent == (["release_many"] if extended else [])


def test_many_abandoned_leases_are_one_record(rig: Rig) -> None:
    leases = [rig.hold(f"shard:{number}") for number in range(7)]
    with logged() as log, pytest.warns(ResourceWarning, match="abandoned") as warned:
        for lease in leases:
            rig.post(partial(rig.engine.abandon, lease))
        assert len(rig.losses) == 7
        rig.go_on(0.1)
        assert not log.said("abandoned")
        rig.go_on(0.5)
        [text] = log.said("abandoned")
        rig.post(partial(rig.engine.abandon, rig.hold("another")))
        rig.go_on(1.5, rig.agree)
        assert len(log.said("abandoned")) == 2
    assert text.startswith("lost 7 locks: 'shard:0', 'shard:1'")
    assert len(warned) == 8


def test_an_abandoned_lease_is_in_the_log_at_the_end_of_the_interpreter(rig: Rig) -> None:
    lease = rig.hold("a")
    with logged() as log, pytest.warns(ResourceWarning, match="abandoned"):
        rig.post(lambda: rig.engine.abandon(lease))
        rig.post(lambda: rig.engine.exit(1.0, Future(lambda: None)))
        assert log.said("abandoned")


@pytest.mark.parametrize(
    "text", ["BUSY Redis is busy running a script.", "MISCONF no disk", "OOM no", "NOPERM no rights"]
)
@pytest.mark.parametrize("whole_call", [True, False])
def test_an_error_until_the_deadline_loses_the_lease_without_a_hot_loop(rig: Rig, text: str, whole_call: bool) -> None:
    lease = rig.hold("a")
    deadline = lease.deadline
    asked: list[float] = []

    def refuse() -> None:
        for _ in rig.server.take():
            asked.append(rig.now)
            rig.server.say(error(text) if whole_call else array(1, text))

    rig.go_to(START + 4.0, refuse)
    [(_, event)] = rig.losses
    assert event.reason is LossReason.NOT_CONFIRMED
    assert deadline - 0.02 <= event.at <= deadline
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    # The first pause is 20 ms and doubles up to half a second; each a quarter more or less, and down to a tick.
    for pause, wanted in zip(pauses, [0.02, 0.04, 0.08, 0.16, 0.32, *[0.5] * 10], strict=False):
        assert wanted * 0.75 - 0.011 <= pause <= wanted * 1.25 + 0.011
    assert 6 <= len(asked) <= 12
    assert asked[-1] < deadline


INTERVAL_S = 1.0


ENDS: dict[str, Callable[[Rig, list[Lease]], object]] = {
    "release": lambda rig, leases: rig.engine.release_many(leases, Future(lambda: None)),
    "release one by one": lambda rig, leases: [rig.engine.release(lease, Future(lambda: None)) for lease in leases],
    "abandon": lambda rig, leases: list(map(rig.engine.abandon, leases)),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("terms", [{}, {"max_renewals": 3}])
def test_a_lease_that_ends_in_the_step_in_which_it_is_due_is_not_renewed(
    rig: Rig, end: str, terms: dict[str, float]
) -> None:
    leases = [rig.hold(name, **terms) for name in names(4)]
    rig.timer.call_at(rig.now + INTERVAL_S - 2 * TICK_S, lambda now: ENDS[end](rig, leases[:2]), rig.engine)
    rig.go_on(INTERVAL_S - 5 * TICK_S)
    rig.jump(0.2)
    sent = rig.server.take()
    assert [command.names for command in sent if command.what == "renew"] == [names(4)[2:]]
    rig.server.say(*[b":1\r\n" if command.what == "release" else b"*0\r\n" for command in sent])
    rig.go_on(10.0, rig.agree)
    final = State.LOST if end == "abandon" else State.RELEASED
    assert [lease.state for lease in leases[:2]] == [final] * 2
    assert all(map(rig.is_valid, leases[2:])) or "max_renewals" in terms


def wait_together(rig: WaitingRig, *names: str) -> Wait:
    """Begin to wait for several locks at once."""
    alone = [rig.waiter(name).acquisition.as_waiter() for name in names]
    future: Future[Sequence[Lease] | None] = Future(lambda: None)
    leases = [lease for each in alone for lease in each._template]
    together = MultiLockWaiter(rig.engine.wait_queues, alone[0].options, leases, False, True, None, future)
    rig.post(together.begin)
    return Wait(names[0], together, future)


def test_one_that_joins_a_line_in_the_step_in_which_its_time_was_up_ends_alone() -> None:
    """Who asks for the first time hears nothing in time, so those who came meanwhile go where others stand already."""
    with WaitingRig() as rig:
        together = wait_together(rig, "a", "b")
        asking, behind = [rig.wait("a", blocking_timeout=timeout) for timeout in (0.4, 0.5)]
        rig.reply(None, array(1, 30_000))  # another holds the first of the two names
        assert rig.waiting == 1
        rig.go_on(0.3)
        rig.jump(0.3)
        assert isinstance(asking.error, LockTimeout)
        assert together.goes_on
        rig.go_on(1.0)
        assert isinstance(behind.error, LockTimeout)
        assert "internal" not in str(behind.error)
        assert together.goes_on


DOWN = "ERR Script attempted to execute a command while the cluster is down"


def test_a_few_calls_are_under_way_at_a_time_and_what_is_due_goes_between_them() -> None:
    with Rig(batch_size=10) as rig:
        rig.hold_many(names(1_000), 30.0)
        urgent = rig.hold("urgent", 3.0)
        rig.go_on(0.5)
        rig.reconnect()
        calls = rig.server.take()
        assert [command.what for command in calls] == ["renew"] * 8
        rig.go_on(0.6)
        due = rig.server.take()
        assert ["urgent"] in [command.names for command in due]
        rig.server.say(FINE * (len(calls) + len(due)))
        rig.go_on(0.3, rig.agree)
        assert urgent.renewals == 1
        assert rig.stats().renewed >= 1_001


@pytest.mark.parametrize("text", ["BUSY Redis is busy", "LOADING Redis is loading", "MASTERDOWN Link is down"])
def test_a_server_that_cannot_answer_yet_is_asked_again(rig: Rig, text: str) -> None:
    lease = rig.hold("a", 9.0, renew=False)
    rig.go_on(1.0)
    rig.connector.address = ("elsewhere", "6379")
    rig.hang_up()
    rig.go_on(0.1)
    assert rig.server.one("GET").names == ["a"]
    rig.say(error(text))
    rig.go_on(1.1)
    assert rig.is_valid(lease)
    assert rig.server.one("GET").names == ["a"]
    rig.say(NIL)
    assert rig.reasons == [("a", LossReason.KEY_GONE)]


def test_a_bulk_release_that_fails_at_its_second_try_is_not_counted_as_done(rig: Rig) -> None:
    leases = rig.hold_many(["gone", "forbidden", "down", "released"], 30.0)
    future = rig.release_many(leases)
    rig.server.one("release_many")
    rig.hang_up()  # without a reply
    rig.go_on(0.3)
    rig.reply("release_many", array(1, 0, 2, "NOPERM this user has no permissions", 3, DOWN))
    assert future.done
    assert isinstance(future.error, LockServerError)
    assert rig.stats().released == 2
    assert all(lease.state is State.RELEASED for lease in leases)
    assert rig.losses == []


def test_its_size_can_be_asked_for_while_the_first_of_another_kind_comes(rig: Rig) -> None:
    overdue = Overdue()

    class Counted:
        """Those of one kind: while another thread counts them, the thread of the timer goes on."""

        def __len__(self) -> int:
            if len(scripts) == 1:
                overdue.add([rig.lease("b", kind=READ)])
            return 1

    scripts: Any = overdue._by_script
    scripts["another"] = Counted()
    assert len(overdue) == 1
    assert len(overdue) == 2


def test_several_that_are_granted_with_hardly_any_time_left_are_renewed_at_once_and_once(rig: Rig) -> None:
    rig.hold("warm-up", 60.0)
    attempt = rig.acquire_many(names(10), 1.0)  # as many as in a block
    rig.jump(0.96)
    rig.agree()
    rig.reply("renew", FINE)
    rig.go_on(0.2, rig.agree)
    assert [lease.renewals for lease in attempt.leases] == [1] * 10
    assert rig.losses == []


# Blocks: leases that one call has confirmed are renewed together until something happens to one of them or to the call


COUNT = 10
TIMEOUT_S, BLOCKS_EVERY_S = 30.0, 10.0


def hold_block(rig: Rig, count: int = COUNT) -> list[Lease]:
    """Hold leases that are in one block, and due in one interval."""
    leases = rig.hold_many(names(count), TIMEOUT_S)
    rig.go_on(BLOCKS_EVERY_S, rig.agree)
    (block,) = {lease.block for lease in leases}
    assert isinstance(block, Block)
    assert block.size == count
    return leases


def test_a_holder_that_has_seen_the_deadline_pass_as_the_block_was_confirmed_has_lost(rig: Rig) -> None:
    leases = hold_block(rig)
    rig.go_on(BLOCKS_EVERY_S)
    leases[0].record_lapse()
    rig.reply("renew", FINE)
    assert not rig.is_valid(leases[0])
    rig.post(lambda: rig.engine.lapse_seen(leases[0]))
    assert rig.reasons == [("lock:0", LossReason.NOT_CONFIRMED)]
    assert rig.server.one("release_many").pairs == [(b"lock:0", leases[0].token)]


def refuse(rig: Rig) -> None:
    rig.reply("renew", error("MISCONF no disk"))


def be_silent(rig: Rig) -> None:
    rig.be_silent(6.0)


@pytest.mark.parametrize("trouble", [refuse, Rig.hang_up, be_silent])
def test_the_trouble_of_a_call_splits_the_block_and_its_leases_are_renewed_or_lost_one_by_one(
    rig: Rig, trouble: Callable[[Rig], object]
) -> None:
    leases = hold_block(rig)
    rig.go_on(BLOCKS_EVERY_S)
    before = leases[0].deadline
    trouble(rig)
    assert {lease.block for lease in leases} == {None}
    assert set(leases) <= set(rig.engine.router.renewer.overdue.snapshot())
    assert {lease.deadline for lease in leases} == {before}
    rig.connector.refusal = ConnectionRefusedError("not listening")
    rig.go_to(before)
    assert sorted(rig.reasons) == [(name, LossReason.NOT_CONFIRMED) for name in names(COUNT)]


def test_a_confirmation_behind_the_deadline_is_no_renewal(rig: Rig) -> None:
    leases = hold_block(rig)
    rig.go_on(BLOCKS_EVERY_S)
    rig.server.one("renew")
    rig.server.say(FINE)
    rig.clock.jump(TIMEOUT_S)
    rig.turn()
    assert sorted(rig.reasons) == [(name, LossReason.NOT_CONFIRMED) for name in names(COUNT)]
    assert [command.what for command in rig.server.take()] == ["release_many"]
    assert leases[0].renewals == 1
