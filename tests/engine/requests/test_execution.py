"""What is known about the tries of a request: the table, against the set of tries that may have been executed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wheel_lock.engine.requests.execution import (
    AFTER,
    BOTH,
    EARLIER,
    LATEST,
    NONE,
    SENT,
    Execution,
    Proof,
)


@given(st.lists(st.sampled_from(Proof)))
def test_the_table_says_which_tries_may_have_been_executed(proofs: list[Proof]) -> None:
    execution, latest, possible = NONE, 0, set[int]()
    for proof in proofs:
        execution = AFTER[proof][execution]
        if proof is SENT:
            latest += 1
            possible.add(latest)
        else:
            possible.discard(latest)
        assert execution is _summary(possible, latest)


def _summary(possible: set[int], latest: int) -> Execution:
    earlier = bool(possible - {latest})
    return (BOTH if earlier else LATEST) if latest in possible else (EARLIER if earlier else NONE)
