"""An error of our own, anywhere in a renewal: each lease goes on or is reported lost in time, and others can be had."""

from __future__ import annotations

from tests.engine.failing_call import failing_calls
from tests.engine.rig import Rig

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
    for fault in failing_calls(FILES):
        with Rig() as rig:
            leases = [rig.hold(name) for name in "ab"]
            with fault:
                rig.go_on(1.5, rig.agree)
            rig.go_on(5.0, rig.agree)
            losses = dict(rig.losses)
            assert len(losses) == len(rig.losses), f"reported twice: {fault.where}"
            for lease in leases:
                if lease in losses:
                    assert losses[lease].at <= losses[lease].deadline, f"reported too late: {fault.where}"
                    assert not rig.is_valid(lease)
                else:
                    assert rig.is_valid(lease), f"no loss was reported: {fault.where}"
                    assert lease.renewals >= 4, f"it is no longer renewed: {fault.where}"
            rig.hold("c")
            assert len(rig.failures) == bool(fault.where)
            rig.failures.clear()
