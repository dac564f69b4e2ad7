"""Between its look at the other side and its own write, neither side of the path can be stopped: no call comes in between.

CPython changes threads, and runs handlers of signals, when an instruction checks the *eval breaker*: CALL and its kin after
the call, RESUME at the start of a function, and jumps back, in 3.11 to 3.15 alike. Garbage is collected at the same places,
or in 3.11 at allocations of containers. So between a look and the write that depends on it there may be nothing but
instructions that read and write local variables, constants and slots, and jumps forward.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any

import pytest

from wheel_lock.engine.direct.hold import DirectHold
from wheel_lock.engine.direct.path import DirectPath
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.lease import Lease, State

pytestmark = pytest.mark.skipif(sys.implementation.name != "cpython", reason="no other interpreter has a direct path")

_HARMLESS = re.compile(
    r"LOAD_(FAST|CONST|COMMON_CONSTANT|GLOBAL|ATTR|DEREF|SMALL_INT)\w*|STORE_(FAST|ATTR)\w*|POP_JUMP(_FORWARD)?_IF_\w+|JUMP_FORWARD"
    r"|IS_OP|COPY|SWAP|NOP|CACHE|EXTENDED_ARG|POP_TOP|TO_BOOL|UNARY_NOT|NOT_TAKEN"
)
_ENDS = re.compile(r"RETURN_\w+|RAISE_VARARGS|RERAISE")
_ALWAYS_JUMPS = re.compile(r"JUMP_(FORWARD|BACKWARD\w*)")


def in_between(function: Callable[..., Any], look: str, store: str) -> list[list[dis.Instruction]]:
    """Return for each write of the attribute `store` what may be executed between the look at `look` and it.

    Each list has all instructions on all ways back from the write to a look, or else to the start of the function.
    """
    code = list(dis.get_instructions(function))
    place = {step.offset: number for number, step in enumerate(code)}
    before: list[list[int]] = [[] for _ in code]
    for number, step in enumerate(code):
        if "JUMP" in step.opname or step.opname in ("FOR_ITER", "SEND"):
            before[place[step.argval]].append(number)
        if not _ENDS.fullmatch(step.opname) and not _ALWAYS_JUMPS.fullmatch(step.opname) and number + 1 < len(code):
            before[number + 1].append(number)
    found = []
    for number, step in enumerate(code):
        if step.opname == "STORE_ATTR" and step.argval == store:
            seen: set[int] = set()
            left = before[number].copy()
            while left:
                back = left.pop()
                if back not in seen:
                    seen.add(back)
                    if not (code[back].opname.startswith("LOAD_ATTR") and code[back].argval == look):
                        left.extend(before[back])
            found.append([code[back] for back in sorted(seen)])
    return found


PLAIN = {
    step.argval
    for function in (DirectPath.__init__, DirectPath.after_fork_in_child)
    for step in dis.get_instructions(function)
    if step.opname == "STORE_ATTR" and not hasattr(DirectPath, step.argval)
}


def breaks(step: dis.Instruction) -> bool:
    """Return whether something else may run at an instruction: the breaker is checked, or an attribute may have code."""
    if _HARMLESS.fullmatch(step.opname) is None:
        return True
    if not step.opname.endswith("_ATTR") or step.argval in PLAIN:
        return False
    kinds = [
        getattr(owner, step.argval) for owner in (DirectHold, Lease, FirstTry, State) if hasattr(owner, step.argval)
    ]
    return not kinds or not all(isinstance(kind, MemberDescriptorType | State) for kind in kinds)


PLACES = [
    # A caller looks whether its hold is over, then changes the lease.
    (DirectPath.acquire, "over", "state", [0]),
    (DirectPath._late, "over", "state", [0]),
    (DirectPath.release, "over", "state", [0, 1]),
    # The timer's thread looks at the lease, then ends the hold.
    (DirectPath.take_over, "state", "over", [0]),
]


@pytest.mark.parametrize(
    ("function", "look", "store", "which"), PLACES, ids=lambda value: getattr(value, "__name__", "")
)
def test_nothing_else_can_run_between_a_look_and_the_write_that_depends_on_it(
    function: Callable[..., Any], look: str, store: str, which: list[int]
) -> None:
    writes = in_between(function, look, store)
    assert len(writes) >= len(which)
    for number in which:
        assert [step for step in writes[number] if breaks(step)] == []
        assert any(step.argval == look for step in writes[number])


def test_a_write_is_counted_before_anything_else_can_run() -> None:
    """What is counted is taken from the path in the same step: the call that removes it is the first after the count."""
    counts: list[tuple[Callable[..., Any], str, str]] = [
        (DirectPath._go_on, "acquired", "pop"),
        (DirectPath.count, "released", "popleft"),
    ]
    for function, counter, removal in counts:
        code = list(dis.get_instructions(function))
        [counted] = [
            number for number, step in enumerate(code) if step.opname == "STORE_ATTR" and step.argval == counter
        ]
        after = code[counted + 1 :]
        call = next(number for number, step in enumerate(after) if step.opname in ("PRECALL", "CALL"))
        assert removal in [step.argval for step in after[:call]]
        assert [step.opname for step in after[:call] if breaks(step) and step.argval not in ("claim", removal)] == []


def called(hold: Any, look: Callable[[], object]) -> None:
    if not hold.over:
        look()
        hold.state = 1


def looped(hold: Any) -> None:
    if not hold.over:
        while hold.state:
            hold.number = 1
        hold.state = 1


def unseen(hold: Any, ready: bool) -> None:
    if ready or not hold.over:
        hold.state = 1


def with_a_property(hold: Any) -> None:
    if not hold.over:
        hold.state = hold.token


@pytest.mark.parametrize("wrong", [called, looped, unseen, with_a_property])
def test_what_is_wrong_is_found(wrong: Callable[..., Any]) -> None:
    [write] = in_between(wrong, "over", "state")
    assert any(breaks(step) for step in write)
