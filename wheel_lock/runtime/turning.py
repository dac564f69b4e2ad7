"""The thread of a loop: it turns the loop, and while it sleeps with nothing to do it does not keep it.

So a timer that its owner has dropped without a ``stop()`` is collected once nothing is scheduled on it and no connection
is open. The thread then finds it gone, gives back what it slept on, and ends.
"""

from __future__ import annotations

import selectors
import warnings
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from wheel_lock.runtime.waker import EventWaker, SocketWaker

if TYPE_CHECKING:
    from wheel_lock.runtime.loop import Loop


class Asleep(NamedTuple):
    """What a loop sleeps on while it has nothing to do.

    Attributes:
        selector: The loop's selector.
        waker: What ends the sleep.
        inbox: The loop's messages: one that is about the loop keeps it alive until it has been read.
    """

    selector: selectors.BaseSelector
    waker: EventWaker | SocketWaker
    inbox: deque[Any]


def run(handed_over: list[Loop]) -> None:
    """Turn a loop until it stops, or is gone.

    Args:
        handed_over: The loop, and nothing else; it is taken out, because the thread object keeps its arguments.
    """
    loop: Loop | None = handed_over.pop()
    reference = weakref.ref(loop)
    asleep: Asleep | None = None
    try:
        while loop is not None:
            asleep = loop._main()
            loop = None
            if asleep is None:
                return
            asleep.selector.select()  # the next turn sees to what has come
            loop = reference()
    except BaseException as error:
        loop = reference()
        if loop is not None:
            loop._died(error)
            return
    if asleep is not None:
        asleep.selector.close()


def warn_unstopped(name: str) -> None:
    """On the notifier thread."""
    warnings.warn(f"the timer {name} was dropped without stop()", ResourceWarning, stacklevel=1)
