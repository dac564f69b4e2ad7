"""An error of our own, anywhere in a renewal: each lease goes on or is reported lost in time, and others can be had."""

from __future__ import annotations

from tests.engine.rig import Rig
from tests.engine.strike import Strike

FILES = (
    "engine/renewal/flow.py",
    "engine/renewal/renewer.py",
    "engine/renewal/retries.py",
    "engine/renewal/overdue.py",
    "engine/leases.py",
    "net/node.py",
    "net/connection.py",
    "wheel_lock/lease.py",
)


def test_no_lease_ends_in_silence() -> None:
    for nth in range(1000):
        with Rig() as rig:
            leases = [rig.hold(name) for name in "ab"]
            with Strike(nth, FILES) as strike:
                rig.go_on(1.5, rig.agree)
            rig.go_on(5.0, rig.agree)
            told = dict(rig.told)
            assert len(told) == len(rig.told), f"told twice: {strike.where}"
            for lease in leases:
                if lease in told:
                    assert told[lease].at <= told[lease].deadline, f"told too late: {strike.where}"
                    assert not rig.believes(lease)
                else:
                    assert rig.believes(lease), f"nobody was told: {strike.where}"
                    assert lease.renewals >= 4, f"it is renewed no more: {strike.where}"
            rig.hold("c")
            assert len(rig.failures) == bool(strike.where)
            rig.failures.clear()
        if not strike.where:
            assert nth > 20
            return
    raise AssertionError("it never ends")
