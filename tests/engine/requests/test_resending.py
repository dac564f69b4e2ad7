"""What is sent again: calls to a server that knows no scripts, and whatever was unanswered on a broken connection."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.rig import NOSCRIPT, Rig, agreement, error, integer, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.waiting.multi_lock import MultiLockWaiter
from wheel_lock.errors import LockTimeout
from wheel_lock.lock_types import FENCED
from wheel_lock.options import lock_options
from wheel_lock.protocol import scripts


def test_a_renewal_is_called_by_its_sha1_in_the_form_that_the_server_knows() -> None:
    for flagged in (True, False):
        with Rig() as rig:
            rig.connector.flagged = flagged
            rig.hold("a")
            rig.go_on(1.0)
            command = rig.server.one("renew")
            assert not command.use_eval
            assert command.sha1.decode() == scripts.RENEW.form(flagged).sha1


def test_a_server_that_knows_no_script_even_in_full_is_not_asked_in_a_tight_loop(rig: Rig) -> None:
    rig.hold("a")
    asked = 0

    def refuse() -> None:
        nonlocal asked
        commands = rig.server.take()
        asked += len(commands)
        rig.server.say(NOSCRIPT * len(commands))

    rig.go_on(4.0, refuse)
    assert asked <= 24
    assert len(rig.told) == 1


@pytest.mark.parametrize("kind_of_call", ["acquire_fenced", "release", "extend", "release_many", "acquire_many"])
def test_every_script_is_repeated_in_full_with_the_same_arguments(rig: Rig, kind_of_call: str) -> None:
    if kind_of_call == "acquire_fenced":
        rig.acquire("a", kind=FENCED)
    elif kind_of_call == "acquire_many":
        rig.acquire_many(["a", "b"])
    else:
        lease = rig.hold("a")
        if kind_of_call == "release":
            rig.release(lease)
        elif kind_of_call == "extend":
            rig.extend(lease, 5.0)
        else:
            rig.release_many([lease])
    first = rig.server.one(kind_of_call)
    rig.say(NOSCRIPT)
    second = rig.server.one(kind_of_call)
    assert second == first._replace(use_eval=True)


def test_overdue_leases_are_drained_nearest_deadline_first_across_calls() -> None:
    with Rig(batch_size=10) as rig:
        rig.hold_many(names(35), 30.0)
        rig.jump(9.0)  # due: some of them, in one batch after the other
        rig.server.take()
        rig.reconnect(1.5)
        drained = [command for command in rig.server.take() if command.what == "renew"]
        by_token = {lease.token: lease for lease in rig.held}
        deadlines = [by_token[token].deadline for command in drained for _, token in command.pairs]
        assert deadlines == sorted(deadlines)
        assert len(deadlines) == 35
        assert {len(command.pairs) for command in drained} <= {10, 5}


WANTS_KEYS = error("ERR all the keys that the script uses should be passed using the KEYS array")


def test_a_bulk_acquire_that_is_given_up_is_not_asked_for_in_another_way(rig: Rig) -> None:
    attempt = rig.acquire_many(names(3), limit_s=0.5)
    rig.go_on(0.6)
    assert isinstance(attempt.future.error, LockTimeout)
    assert rig.whats() == ["acquire_many", "release_many"]
    rig.say(WANTS_KEYS)
    assert rig.server.take() == []
    rig.say(WANTS_KEYS)  # but what cleans up after it is
    assert rig.whats() == ["release_many"] * 3
    assert rig.held == {}


def test_several_locks_together_that_are_given_up_are_not_asked_for_one_by_one(rig: Rig) -> None:
    leases = [rig.lease(name) for name in "ab"]
    future: Future[Any] = Future(lambda: None)
    together = MultiLockWaiter(rig.engine.wait_queues, lock_options(3.0), leases, False, False, None, future)
    rig.post(together.begin)
    rig.post(together.give_up)
    assert rig.whats() == ["acquire_all", "release_many"]
    rig.say(WANTS_KEYS)
    assert rig.server.take() == []
    assert rig.held == {}


@pytest.mark.rig(declare_keys=True)
def test_several_locks_in_parts_are_granted_only_while_all_of_them_are_valid(rig: Rig) -> None:
    leases = [rig.lease(name, renew=False) for name in "ab"]
    future: Future[Any] = Future(lambda: None)
    options = lock_options(3.0, renew=False)
    rig.post(MultiLockWaiter(rig.engine.wait_queues, options, leases, False, False, None, future).begin)
    rig.be_silent(1.0)
    rig.reply("acquire_all", integer(0))
    rig.clock.jump(2.0)  # the process stands still: the first one ends
    rig.reply("acquire_all", integer(0))
    assert not rig.believes(leases[0])
    released = rig.server.take()
    assert {name for command in released for name in command.names} == {"a", "b"}
    rig.say(*map(agreement, released))
    assert future.done
    assert future.result() is None
    assert rig.told == []
    assert rig.held == {}
