"""The most that a renewal, an acquire and a release may cost. `python -m tests.costs` prints what they cost now.

System calls, wake-ups and commands are those of the code as it is; numbers of calls and of bytes have about a tenth to
spare. What grows is a cost for everybody: a system call takes microseconds and may give the interpreter's lock away, a call
of a Python function takes a tenth of one, and a script call a few at the server.

What has grown is said by the table of calls by function that a failing test prints, beside that of the commit before
(`python -m tests.costs calls`). What has shrunk for good is written down here.
"""

from __future__ import annotations

Figures = dict[str, float]

RENEWALS: dict[int, Figures] = {
    1_000: {  # four calls an interval: those due within the slack join
        "renewals per lock": 1.0,
        "wake-ups": 0.007,  # for the tick, and for the reply
        "system calls": 0.017,
        "script calls": 0.004,
        "bytes sent": 66.0,  # 15 of them for the readable owner
        "bytes received": 0.0175,
        "Python calls": 0.34,  # 78 for each script call
        "C calls": 0.32,
        "bytecodes": 20.0,  # 12 in Python 3.11: of calls and turns, and none of a lease
    },
    10_000: {  # 21 calls an interval, up to four together
        "renewals per lock": 1.0,
        "wake-ups": 0.0024,
        "system calls": 0.0055,
        "script calls": 0.0021,
        "bytes sent": 66.0,
        "bytes received": 0.009,
        "Python calls": 0.125,
        "C calls": 0.125,
        "bytecodes": 8.0,  # 4.4 in Python 3.11
    },
}
"""Of one renewal, by the number of locks that are held, with a timeout of 30 s."""

_ACQUIRE: Figures = {
    "Python calls of the engine": 65.0,
    "system calls of the engine": 4.0,  # it sleeps until it is woken, sends, sleeps again, receives
    "random numbers drawn": 0.01,  # one draw serves 512 tokens
    "turns": 2.0,
    "commands": 1.0,
    "bytes sent": 105.0,
    "bytes received": 5.0,
    "objects that live on": 2.9,  # a lock object, its lease, and a few of the wheel's that many leases share
}
_RELEASE: Figures = {
    "Python calls of the engine": 67.0,
    "system calls of the engine": 4.0,
    "random numbers drawn": 0.0,
    "turns": 2.0,
    "commands": 1.0,
    "bytes sent": 174.0,
    "bytes received": 4.0,
    "objects that live on": 0.2,
}
PAIRS: dict[str, tuple[Figures, Figures]] = {
    "thread": (
        {**_ACQUIRE, "Python calls of the caller": 31.0, "C calls of both": 86.0},
        {**_RELEASE, "Python calls of the caller": 13.0, "C calls of both": 61.0},
    ),
    "task": (  # the event loop is woken by a system call
        {
            **_ACQUIRE,
            "Python calls of the caller": 49.0,
            "Python calls of the engine": 66.0,
            "C calls of both": 90.0,
            "system calls of the engine": 5.0,
        },
        {
            **_RELEASE,
            "Python calls of the caller": 19.0,
            "Python calls of the engine": 68.0,
            "C calls of both": 64.0,
            "system calls of the engine": 5.0,
        },
    ),
}
"""Of an acquire and a release of a free lock, by caller."""
