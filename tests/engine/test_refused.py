"""What a server refuses to one kind of lock, and what becomes of the others meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from tests.engine.support import FINE, Command, Rig, error, integer, names
from wheel_lock.engine.kind import Kind
from wheel_lock.lease import Lease, State
from wheel_lock.locks import READ, REENTRANT

VERY_MANY = 12_000
NO_TIME = "NOPERM User app has no permissions to run the 'time' command"


def hold(rig: Rig, name: str, kind: Kind, timeout: float) -> Lease:
    """Acquire a lock of a kind whose script answers with a fence, or 0."""
    attempt = rig.acquire(name, timeout, kind=kind)
    rig.server.take()
    rig.say(integer(0))
    assert attempt.operation.result()
    return attempt.lease


def refusing(rig: Rig, scripts: Collection[str], seen: list[Command]) -> Callable[[], None]:
    """Return what answers as a server that refuses whole calls of these scripts; renewals go into ``seen``."""

    def answer() -> None:
        for command in rig.server.take():
            if command.what.startswith("renew"):
                seen.append(command)
            rig.server.say(error(NO_TIME) if command.what in scripts else FINE)

    return answer


def test_what_is_refused_to_very_many_locks_of_one_kind_costs_no_other_kind() -> None:
    with Rig() as rig:
        # Theirs are the nearest deadlines whenever there is something to try again.
        refused = rig.hold_many(names(VERY_MANY), 30.0, renew_every=5.0)
        other = hold(rig, "a", READ, 36.0)
        seen: list[Command] = []
        rig.go_on(26.0, refusing(rig, ["renew"], seen))
        assert {lease.renewals for lease in refused} == {0}
        assert other.renewals == 2
        assert rig.told == []


def test_a_kind_that_is_not_refused_goes_on_as_if_nothing_were(rig: Rig) -> None:
    rig.hold_many(names(1000), 30.0, renew_every=5.0)
    others = [hold(rig, f"other:{number}", READ, 30.0) for number in range(20)]
    seen: list[Command] = []
    rig.go_on(9.0, refusing(rig, ["renew"], seen))
    seen.clear()
    rig.go_on(6.0, refusing(rig, ["renew"], seen))
    assert [lease.renewals for lease in others] == [1] * 20
    # A probe of the other kind at each retry, which come half a second apart by now, and no more.
    assert 8 <= sum(command.what == "renew" for command in seen) <= 18


@pytest.mark.parametrize("third", ["renew", "renew_reentrant", "renew_holders"])
def test_two_kinds_that_are_refused_do_not_keep_a_third_from_its_turn(rig: Rig, third: str) -> None:
    leases = {
        "renew": rig.hold_many(names(600), 30.0)[0],
        "renew_reentrant": hold(rig, "b", REENTRANT, 30.0),
        "renew_holders": hold(rig, "c", READ, 30.0),
    }
    seen: list[Command] = []
    rig.go_on(25.0, refusing(rig, leases.keys() - {third}, seen))
    assert {script: lease.renewals > 0 for script, lease in leases.items()} == {
        script: script == third for script in leases
    }


def test_when_the_server_is_well_again_all_kinds_are_renewed_at_once(rig: Rig) -> None:
    many = rig.hold_many(names(2000), 30.0)
    others = [hold(rig, "b", REENTRANT, 30.0), hold(rig, "c", READ, 30.0)]
    seen: list[Command] = []
    rig.go_on(20.0, refusing(rig, ["renew", "renew_reentrant", "renew_holders"], seen))
    assert all(lease.state is State.OVERDUE for lease in [*many, *others])
    rig.go_on(0.65, refusing(rig, [], seen))
    assert all(lease.renewals == 1 for lease in [*many, *others])
