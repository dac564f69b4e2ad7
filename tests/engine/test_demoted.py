"""What a demoted master refuses to do goes to the next master, whatever the words of its version are."""

from __future__ import annotations

import pytest

from tests.engine.support import FINE, GONE, OK, Rig, array, error, integer, names
from tests.unit.test_server_errors import ROWS, error_of
from wheel_lock.lease import State

TEXTS = [str(error_of(row)).rstrip() for row in ROWS if row["code"] == "READONLY"]
# What a script without a #!lua line tells of each of its leases, before Redis 7.
VERDICT = "@user_script: 1: -READONLY You can't write against a read only replica.\r\n"


@pytest.fixture(params=TEXTS)
def demotion(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def moving(rig: Rig) -> Rig:
    """An engine that finds out which server is the master whenever it connects."""
    rig.connector.discovers = True
    return rig


def test_an_acquire_goes_to_the_next_master(moving: Rig, demotion: str) -> None:
    attempt = moving.acquire("a")
    moving.say(error(demotion))
    assert len(moving.connector.servers) == 1
    moving.go_on(0.1)
    moving.server.one("SET")
    moving.say(OK)
    assert attempt.future.result()


def test_a_release_goes_to_the_next_master(moving: Rig, demotion: str) -> None:
    lease = moving.hold("a")
    future = moving.release(lease)
    moving.say(error(demotion))
    moving.go_on(0.1)
    moving.server.one("release")
    moving.say(integer(1))
    assert future.error is None
    assert future.done


def test_an_extension_goes_to_the_next_master(moving: Rig, demotion: str) -> None:
    lease = moving.hold("a")
    future = moving.extend(lease, 5.0, replace=True)
    moving.say(error(demotion))
    moving.go_on(0.1)
    moving.server.one("extend")
    moving.say(integer(5000))
    assert future.error is None
    assert future.done
    assert moving.believes(lease)


def test_a_renewal_goes_to_the_next_master(moving: Rig, demotion: str) -> None:
    lease = moving.hold("a")
    moving.go_on(1.0)
    moving.server.one("renew")
    moving.say(error(demotion))
    moving.go_on(1.0, moving.agree)
    assert len(moving.connector.servers) == 2
    assert lease.state is State.HELD
    assert lease.renewals


def test_a_renewal_of_which_some_entries_are_refused_goes_to_the_next_master(moving: Rig) -> None:
    gone, refused = moving.hold_many(names(2))
    moving.go_on(1.0)
    assert len(moving.server.one("renew").pairs) == 2
    moving.say(array(1, GONE, 2, VERDICT))
    moving.go_on(0.5, moving.agree)
    assert len(moving.connector.servers) == 2
    assert gone.state is State.LOST
    assert refused.state is State.HELD
    assert refused.renewals


def test_a_release_of_many_of_which_each_entry_is_refused_goes_to_the_next_master(moving: Rig) -> None:
    leases = moving.hold_many(names(2))
    future = moving.release_many(leases)
    moving.server.one("release_many")
    moving.say(array(1, VERDICT, 2, VERDICT))
    moving.go_on(0.1)
    assert len(moving.server.one("release_many").pairs) == 2
    moving.say(FINE)
    assert future.result() == {}


def test_an_acquire_of_many_of_which_each_entry_is_refused_goes_to_the_next_master(moving: Rig) -> None:
    attempt = moving.acquire_many(names(2))
    moving.server.one("acquire_many")
    moving.say(array(1, VERDICT, 2, VERDICT))
    moving.go_on(0.1)
    assert len(moving.server.one("acquire_many").pairs) == 2
    moving.say(FINE)
    assert attempt.future.error is None
    assert all(lease.state is State.HELD for lease in attempt.leases)
