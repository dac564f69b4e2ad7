"""The ends of what lives on a timer's thread: one list of their kinds, and one way to hand an end on to all parts.

A part has one method, ``end``, which says what it does at which kind. Whatever has parts of its own ends these, too. So a
new part is joined to one place, the list of whatever it belongs to: that of an engine is in ``engine/engine.py``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

from wheel_lock.errors import LossReason
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.runtime.interruptions import insist


class End(enum.Enum):
    """The kind of an end. A close is CLOSING or EXITING, a bulk release, and CLOSED."""

    CLOSING = enum.auto()  # nothing is acquired any more: all ends by which something could come to be held
    EXITING = enum.auto()  # the same at the end of the interpreter: no caller is left
    CLOSED = enum.auto()  # nothing is sent any more, for good
    STOPPED = enum.auto()  # of what is attached to a timer that is about to stop for good; on the thread that stops it
    RETIRED = enum.auto()  # nothing is held: connections end until the next request
    FAILED = enum.auto()  # the library's own code has failed: all is lost, and begins anew
    DIED = enum.auto()  # the timer's thread has died, with its alarms: the same
    FORKED = enum.auto()  # in a forked child: all is the parent's, which goes on with it, and begins anew here


ANEW = (End.FAILED, End.DIED, End.FORKED)
"""The ends after which a part is as new."""

LOSSES: Mapping[End, LossReason] = {
    End.CLOSED: LossReason.CONTEXT_CLOSED,
    End.FAILED: LossReason.INTERNAL_ERROR,
    End.DIED: LossReason.THREAD_DIED,
}
"""The reasons for which held locks are lost at an end."""

REFUSALS: Mapping[End, str] = {
    End.FAILED: "The engine that keeps the locks has failed",
    End.DIED: "The thread that keeps the locks ended before it answered",
}
"""The texts for callers that wait for a lock."""


class Part(Protocol):
    """An object that ends with another one, of which it is a part."""

    def end(self, how: End, error: Exception) -> None:
        """End, or begin anew; what is in progress is refused with ``error``, but for a forked child."""


def end_all(parts: Iterable[Part], how: End, error: Exception, domain: FailureDomain | None = None) -> None:
    """End ``parts``, in order. A failure of one does not prevent the others; it crashes ``domain`` unless that is None.

    In a forked child the end of a part is repeated if an interruption strikes there (see forks.py).
    """
    for part in parts:
        if how is End.FORKED:
            guarded(domain, insist, partial(part.end, how), error)
        else:
            guarded(domain, part.end, how, error)
