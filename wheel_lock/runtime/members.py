"""What lives on a loop's thread, as the loop sees it."""

from __future__ import annotations

from typing import Protocol

from wheel_lock.runtime.failures import FailureDomain


class Member(Protocol):
    """A part that lives on a loop's thread and must hear of that thread's fate."""

    @property
    def busy(self) -> bool:
        """Whether it waits for a reply."""
        ...

    def thread_died(self) -> None:
        """The thread has died, and every alarm with it."""
        ...

    def after_fork_in_child(self) -> None:
        """This is a forked child: nothing of the parent's is ours."""
        ...

    def timer_stopped(self) -> None:
        """The loop is about to end for good."""
        ...


class Flusher(FailureDomain, Protocol):
    """Whoever has something to write at the end of a turn."""

    def flush(self) -> None:
        """Write it."""
        ...
