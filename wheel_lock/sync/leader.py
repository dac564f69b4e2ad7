"""The leader for threads: it campaigns, and calls back, on threads of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from wheel_lock.errors import quoted
from wheel_lock.locks.leader import BaseLeader, BaseLeadership, Callback, Candidate
from wheel_lock.runtime.interruptions import insist, uninterrupted_start
from wheel_lock.runtime.timer_threads import on_timer_thread
from wheel_lock.sync.call import ThreadSide, run


class Leadership(BaseLeadership):
    """One term of a :class:`Leader`.

    Attributes:
        ended: Set when it is over, before ``on_demoted`` is called. Not set in a forked child, which is no leader.
    """

    def __init__(self, lock: Candidate) -> None:
        self.ended: threading.Event = threading.Event()
        super().__init__(lock, self.ended.set)


class Leader(ThreadSide, BaseLeader[Leadership]):
    """A candidate for the leadership of a name. Made by :meth:`wheel_lock.LockContext.leader`; a context manager.

    It campaigns from ``start()``, or the beginning of a ``with`` block, until ``close()``, or the end of the block. After
    a loss it stands for election again. A forked child is not the leader, and does not campaign.
    """

    _leadership_class = Leadership

    _elected: threading.Thread | None = None
    _thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to campaign in the background, and return the candidate.

        Raises:
            RuntimeError: It was started, or closed, before.
        """
        if self._closing or self._thread is not None:
            raise RuntimeError(f"{self!r} campaigns once; make another one")
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=run, args=(self._campaign(),), name=f"leader of {quoted(self.name)}", daemon=True
        )
        try:
            self._thread.start()
        except BaseException as error:
            if type(error) is RuntimeError:  # the system has no thread
                self._thread = None
            else:
                insist(BaseLeader._begin_closing, self)  # one may run, and an interrupted ``with`` has no end
            raise
        return self

    @uninterrupted_start
    def close(self, timeout: float | None = None) -> None:
        """End the campaign. A leadership is given up: its lock is released when the callbacks have returned.

        When the time is up it is released although they have not, with a WARNING. Closing twice is harmless. A callback may
        call it, and does not wait then. If it is interrupted (by KeyboardInterrupt, say) the campaign ends nevertheless.

        Args:
            timeout: Time limit in seconds; the context's ``close_timeout`` by default.

        Raises:
            ValueError: The time limit is out of range.
        """
        limit_s = self._begin_closing(timeout)
        thread = self._thread
        if thread is None or thread.ident is None or self._pid != os.getpid():
            return
        if threading.current_thread() not in (thread, self._elected) and not on_timer_thread():
            thread.join(limit_s)
            if thread.is_alive():
                self._release_unawaited()

    def __enter__(self) -> Self:
        return self if self._thread is not None and not self._closing else self.start()

    @uninterrupted_start
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        finally:
            insist(BaseLeader._begin_closing, self)

    def _begin_calling(self, what: str, callback: Callback[Leadership], leadership: Leadership) -> None:
        self._elected = threading.Thread(
            target=self._call, args=(what, callback, leadership), name=f"{what} of {quoted(self.name)}", daemon=True
        )
        self._elected.start()

    def _wait_for_elected(self) -> Iterable[Any]:
        thread = self._elected
        if thread is not None and thread.ident is not None:
            thread.join()
        self._elected = None
        return ()

    def _sleep(self, pause_s: float) -> Iterable[Any]:
        time.sleep(pause_s)
        return ()

    def _call(self, what: str, callback: Callback[Leadership], leadership: Leadership) -> Iterable[Any]:
        try:
            callback(leadership)
        except BaseException as error:  # SystemExit, too: it would end the campaign's thread without a word
            self._report(what, error)
        return ()
