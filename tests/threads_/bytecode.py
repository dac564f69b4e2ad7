"""Instructions: which may touch what threads share, and behind which CPython raises what was set from outside."""

from __future__ import annotations

import dis
from pathlib import Path
from types import CodeType, FrameType

# Instructions that touch nothing but the frame they are in. All others may touch what threads share.
_LOCAL = (
    "LOAD_FAST", "STORE_FAST", "LOAD_CONST", "LOAD_SMALL", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_DEREF", "LOAD_CLOSURE",
    "LOAD_ASSERTION", "POP_TOP", "POP_EXCEPT", "PUSH_", "COPY", "SWAP", "RESUME", "PRECALL", "KW_NAMES", "NOP", "CACHE",
    "EXTENDED_ARG", "JUMP_", "BUILD_", "RETURN_", "RERAISE", "RAISE_", "IS_OP", "COMPARE_OP", "BINARY_OP", "MAKE_",
    "CHECK_EXC", "NOT_TAKEN", "END_FOR", "POP_ITER", "UNPACK_", "FORMAT_", "IMPORT_", "LOAD_BUILD",
)  # fmt: skip


def is_checked(before: tuple[FrameType | None, str, int], frame: FrameType, calls: int) -> bool:
    """Whether CPython would raise an exception that was set from outside before the instruction behind ``before``."""
    last, name, calls_then = before
    if last is not frame:
        return False
    return name.startswith(("RESUME", "JUMP_BACKWARD")) or (name.startswith("CALL") and calls == calls_then)


def where(frame: FrameType) -> str:
    name, _ = instructions(frame.f_code).get(frame.f_lasti, ("CALL", True))
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}, {name}"


_known: dict[CodeType, dict[int, tuple[str, bool]]] = {}


def instructions(code: CodeType) -> dict[int, tuple[str, bool]]:
    """Return the name of each instruction, and whether it may touch what threads share."""
    if code not in _known:
        found = {}
        for step in dis.get_instructions(code):
            checked = step.opname != "RESUME" or (step.arg or 0) & 3 < 2
            found[step.offset] = (step.opname if checked else "_", not step.opname.startswith(_LOCAL))
        _known[code] = found
    return _known[code]
