"""The notifier thread: where users' code, warnings and log handlers run, so that none of them can delay a tick.

One daemon thread for the process, started when there is first something to tell. It survives whatever a callback
raises, SystemExit included. Calls run one after the other, in the order in which they were posted.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger("wheel_lock")

_names = itertools.count(1)


def _log_failure(call: object) -> None:
    try:
        logger.exception("a callback on the notifier thread failed: %r", call)
    except BaseException:
        pass  # a log handler that raises, or a __repr__: there is nobody left to tell


class Notifier:
    """Runs calls, in order, on a thread of its own."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # SimpleQueue.put is reentrant, so a post from a finaliser in the middle of another post cannot deadlock.
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[object, ...]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Have ``call(*arguments)`` run soon on the notifier thread. Never blocks."""
        self._calls.put((call, arguments))
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._start()

    def _start(self) -> None:
        if not self._starting.acquire(blocking=False):
            return  # another thread, or an outer frame of this one, is at it
        try:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name=f"wheel-lock-notifier-{next(_names)}", daemon=True)
                thread.start()
                self._thread = thread
        except RuntimeError:
            logger.debug("the interpreter is shutting down: %d notifications are dropped", self._calls.qsize())
        finally:
            self._starting.release()

    def _run(self) -> None:
        while True:
            call, arguments = self._calls.get()
            try:
                call(*arguments)
            except BaseException:
                # SystemExit too: a callback must not silence the ones after it.
                _log_failure(call)
            # The references must go before the next, possibly long wait: a callback may be all that keeps a lock alive.
            del call, arguments

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was posted before has run.

        Args:
            timeout_s: How long to wait at most.

        Returns:
            Whether it has. False at once on the notifier thread itself, which cannot wait for itself.
        """
        if threading.current_thread() is self._thread:
            return False
        done = threading.Event()
        self.post(done.set)
        return done.wait(timeout_s)


NOTIFIER = Notifier()
"""The one of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=NOTIFIER._reset)
