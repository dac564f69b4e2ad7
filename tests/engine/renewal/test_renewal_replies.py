"""What the server says about a renewal: gone and taken are proof, an error is none."""

from __future__ import annotations

import itertools

import pytest

from tests.engine.rig import BUSY, FINE, START, Rig, array, error
from wheel_lock.errors import LossReason
from wheel_lock.lease import State

# What real servers send; the last is what an ACL refusal looks like outside and inside a script.
REFUSALS = [
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "CLUSTERDOWN The cluster is down",
    "NOREPLICAS Not enough good replicas to write.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "NOPERM User default has no permissions to run the 'evalsha' command",
    "ERR The user executing the script can't run this command or subcommand",
]


@pytest.mark.parametrize("text", [REFUSALS[0], REFUSALS[3]])
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
    [(_, event)] = rig.told
    assert event.reason is LossReason.NOT_CONFIRMED
    assert deadline - 0.02 <= event.at <= deadline
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    # The first pause is 20 ms and doubles up to half a second; each a quarter more or less, and down to a tick.
    for pause, wanted in zip(pauses, [0.02, 0.04, 0.08, 0.16, 0.32, *[0.5] * 10], strict=False):
        assert wanted * 0.75 - 0.011 <= pause <= wanted * 1.25 + 0.011
    assert 6 <= len(asked) <= 12
    assert asked[-1] < deadline


def test_a_server_that_refuses_calls_gets_one_probe_at_a_time(rig: Rig) -> None:
    for number in range(5):  # five groups, five calls
        rig.hold_many([f"{number}:a", f"{number}:b"], 3.0 + number / 10, renew_every=1.0)
    rig.go_on(1.0)
    assert len(rig.server.take()) == 5
    rig.say(BUSY * 5)
    most = 0

    def refuse() -> None:
        nonlocal most
        commands = rig.server.take()
        most = max(most, len(commands))
        rig.server.say(BUSY * len(commands))

    rig.go_on(1.0, refuse)
    assert most == 1


def test_a_healthy_probe_brings_all_the_rest_at_once_nearest_deadline_first() -> None:
    with Rig(batch_size=1) as rig:
        leases = [rig.hold(name, timeout, renew_every=1.0) for name, timeout in [("c", 9.0), ("a", 3.0), ("b", 6.0)]]
        rig.go_on(1.0)
        assert len(rig.server.take()) == 3
        rig.say(BUSY * 3)
        rig.go_on(0.03)
        assert [command.names for command in rig.server.take()] == [["a"]]
        rig.say(FINE)
        assert [command.names for command in rig.server.take()] == [["b"], ["c"]]
        rig.say(FINE * 2)
        assert [lease.state for lease in leases] == [State.HELD] * 3


def test_what_is_refused_entry_by_entry_rests_until_the_next_probe_while_others_go_on(rig: Rig) -> None:
    bad = rig.hold("bad", 30.0)
    good = [rig.hold(f"good:{number}", 30.0, renew_every=9.0 + number / 100) for number in range(100)]
    asked = 0

    def answer() -> None:
        nonlocal asked
        for command in rig.server.take():
            refused = [index for index, name in enumerate(command.names, 1) if name == "bad"]
            asked += len(refused)
            rig.server.say(array(*[item for index in refused for item in (index, "MISCONF no disk")]))

    rig.go_to(START + 12.0, answer)
    assert [lease.renewals for lease in good] == [1] * 100
    assert bad.state in (State.OVERDUE, State.RENEWING)
    assert 5 <= asked <= 12
