"""The overdue set, as other threads see it."""

from __future__ import annotations

from typing import Any

from tests.engine.rig import Rig
from wheel_lock.engine.renewal.overdue import Overdue
from wheel_lock.lock_types import READ


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
