"""Protocols of the parts that run on a loop's thread."""

from __future__ import annotations

from typing import Protocol

from wheel_lock.runtime.failures import FailureDomain


class Member(Protocol):
    """A part that runs on a loop's thread and is called at the end of that thread."""

    @property
    def busy(self) -> bool:
        """True if the part waits for a reply."""
        ...

    def thread_died(self) -> None:
        """End everything: the thread has died, and all alarms are gone."""
        ...

    def after_fork_in_child(self) -> None:
        """Drop everything in a forked child: it belongs to the parent."""
        ...

    def timer_stopped(self) -> None:
        """End everything: the loop is about to stop for good."""
        ...


class Flusher(FailureDomain, Protocol):
    """A part that has data to write at the end of a turn."""

    def flush(self) -> None:
        """Write the data."""
        ...
