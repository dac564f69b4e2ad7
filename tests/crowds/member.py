"""One process of a crowd: workers who contend for every kind of lock at the same time.

`python -m tests.crowds.member '<settings as JSON>'`. In some processes the workers are threads, in others tasks. What it
writes is read by crowd.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.crowds.apis import Tasks, Threads
from tests.crowds.checker import Claim
from tests.crowds.workers import KINDS
from tests.faults.checker import Loss
from tests.support.standstill import Standstills
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, LockContext


class Member:
    """All workers of one process, and what they wrote down."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.number: int = settings["number"]
        self.begin: float = settings["begin"]
        self.until: float = settings["until"]
        self.context = LockContext.from_url(settings["url"], timer=HashedWheelTimer())
        self.face = Tasks(self.context) if settings["tasks"] else Threads(self.context)
        self.claims: dict[str, list[Claim]] = {kind: [] for kind in KINDS}
        self.losses: dict[str, list[Loss]] = {kind: [] for kind in KINDS}
        self.troubles: list[str] = []
        self.unanswered: list[tuple[int, float, float, str]] = []  # process, since, until, what
        self.standstills = Standstills().start()
        self.workers = [kind(self, number) for kind in KINDS.values() for number in range(settings["workers"])]

    def run(self) -> None:
        self.face.run(self.workers)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is held and nobody waits any more."""
        stats = self.context.stats()
        return stats.held == 0 and stats.waiting == 0

    def history(self) -> dict[str, Any]:
        return {
            "workers": {kind: [each.name for each in self.workers if each.kind == kind] for kind in KINDS},
            "claims": self.claims,
            "losses": self.losses,
            "troubles": self.troubles,
            "unanswered": self.unanswered,
            "stood": self.standstills.seen,
        }


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    member = Member(settings)
    member.run()
    eventually(lambda: member.at_rest, message=f"member {member.number} rests")
    print("done", flush=True)
    sys.stdin.readline()  # what is left behind by mistake is to be seen by others before the context releases it
    member.context.close()
    Path(settings["path"]).write_text(json.dumps(member.history()))
