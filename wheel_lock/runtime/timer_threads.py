"""The threads of timers. No code that runs on them may wait for another thread, which may be waiting for them.

The package's own code there never waits. But Python runs finalisers (``__del__``, the ``finally`` of a generator that is
dropped) on whichever thread drops an object, or starts a garbage collection: users' code can get onto these threads. So
whatever a caller waits with is not made on them. What gives something back is posted instead, and not waited for.
"""

from __future__ import annotations

from wheel_lock.forks import in_forked_child
from wheel_lock.runtime.native import get_ident

TIMER_THREADS: set[int] = set()
"""The identities of the threads of all timers: :func:`on_timer_thread` for callers that cannot afford a call."""


class MustNotWait(RuntimeError):
    """The caller runs on a timer's thread, and its call would wait."""

    def __init__(self) -> None:
        super().__init__(
            "this is the thread of a timer, which keeps locks alive and must not wait: a finaliser that runs here can "
            "release and close, but it cannot acquire a lock or ask for one"
        )


def on_timer_thread() -> bool:
    """Return whether the caller runs on the thread of a timer, be it this process's shared one or another."""
    return get_ident() in TIMER_THREADS


def check_may_wait() -> None:
    """Raise MustNotWait on the thread of a timer."""
    if get_ident() in TIMER_THREADS:
        raise MustNotWait


in_forked_child(TIMER_THREADS.clear)
