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
    1_000: {  # one a tick
        "renewals per lock": 1.0,
        "wake-ups": 2.0,  # for the tick, and for the reply
        "system calls": 5.0,
        "script calls": 1.0,
        "bytes sent": 140.0,
        "bytes received": 4.4,
        "Python calls": 95.0,
        "C calls": 74.0,
    },
    10_000: {  # ten a tick
        "renewals per lock": 1.0,
        "wake-ups": 0.2,
        "system calls": 0.5,
        "script calls": 0.1,
        "bytes sent": 60.0,
        "bytes received": 0.44,
        "Python calls": 9.5,
        "C calls": 10.4,
    },
}
"""Of one renewal, by the number of locks that are held, with a timeout of 30 s."""

_ACQUIRE: Figures = {
    "Python calls of the engine": 122.0,
    "system calls of the engine": 5.0,  # it wakes and reads the waker, sends, wakes again, receives
    "random numbers drawn": 1.0,
    "turns": 2.0,
    "commands": 1.0,
    "bytes sent": 90.0,
    "bytes received": 5.0,
    "objects that live on": 2.9,  # a lock object, its lease, and a few of the wheel's that many leases share
}
_RELEASE: Figures = {
    "Python calls of the engine": 91.0,
    "system calls of the engine": 5.0,
    "random numbers drawn": 0.0,
    "turns": 2.0,
    "commands": 1.0,
    "bytes sent": 159.0,
    "bytes received": 4.0,
    "objects that live on": 0.2,
}
PAIRS: dict[str, tuple[Figures, Figures]] = {
    "thread": (
        {**_ACQUIRE, "Python calls of the caller": 57.0, "C calls of both": 94.0},
        {**_RELEASE, "Python calls of the caller": 19.0, "C calls of both": 54.0},
    ),
    "task": (  # the event loop is woken by a system call
        {
            **_ACQUIRE,
            "Python calls of the caller": 72.0,
            "Python calls of the engine": 123.0,
            "C calls of both": 96.0,
            "system calls of the engine": 6.0,
        },
        {
            **_RELEASE,
            "Python calls of the caller": 25.0,
            "Python calls of the engine": 92.0,
            "C calls of both": 58.0,
            "system calls of the engine": 6.0,
        },
    ),
}
"""Of an acquire and a release of a free lock, by caller."""
