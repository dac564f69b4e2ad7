"""Replication: grants wait for WAIT, one at a time, with a time limit that includes it, and fail with it."""

from __future__ import annotations

import pytest

from tests.engine.rig import OK, Rig, failure, integer
from wheel_lock.errors import LockTimeout, LockUnavailable

TIMEOUT_S = 0.5


pytestmark = pytest.mark.rig(min_replicas=1, replica_timeout_s=TIMEOUT_S)


def test_one_wait_is_in_flight_at_a_time_and_the_next_covers_what_came_meanwhile(rig: Rig) -> None:
    attempts = [rig.acquire(name) for name in "abc"]
    rig.reply(None, OK)
    assert rig.server.one("WAIT").arguments == (b"1", b"500")
    rig.say(OK, OK)
    server = rig.server
    assert server.take() == []
    rig.say(integer(1))
    assert [attempt.future.done for attempt in attempts] == [True, False, False]
    server.one("WAIT")
    server.say(integer(1))
    rig.turn()
    assert all(attempt.future.result() for attempt in attempts)


def test_the_time_limit_of_a_try_includes_two_waits(rig: Rig) -> None:
    attempt = rig.acquire("a", 60.0)
    rig.be_silent(rig.engine.options.response_timeout_s + 2 * TIMEOUT_S - 0.1)
    assert not attempt.future.done
    rig.go_on(0.2)
    failure(attempt.future, LockTimeout)


@pytest.mark.parametrize("reply", [OK, integer(-1), b""])
def test_a_wait_without_a_number_of_replicas_confirms_nothing_and_ends_at_once(rig: Rig, reply: bytes) -> None:
    attempt = rig.acquire("a")
    rig.reply("SET", OK)
    rig.server.one("WAIT")
    rig.say(reply) if reply else rig.hang_up()
    failure(attempt.future, LockUnavailable, "No connection")
