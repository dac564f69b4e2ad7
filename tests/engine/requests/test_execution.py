"""What is known about the attempts of a request: the table, against the set of attempts that may have been executed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wheel_lock.engine.requests.execution import BOTH, EARLIER, LATEST, NONE, NOT_EXECUTED, SENT, Execution

KNOWN = {(True, True): BOTH, (True, False): LATEST, (False, True): EARLIER, (False, False): NONE}
"""By whether the latest attempt may have been executed, and an earlier one."""


@given(st.lists(st.sampled_from((SENT, NOT_EXECUTED))))
def test_the_table_says_which_tries_may_have_been_executed(happens: list[tuple[Execution, ...]]) -> None:
    execution, latest, possible = NONE, 0, set[int]()
    for after in happens:
        execution = after[execution]
        if after is SENT:
            latest += 1
            possible.add(latest)
        else:
            possible.discard(latest)
        assert execution is KNOWN[latest in possible, bool(possible - {latest})]
