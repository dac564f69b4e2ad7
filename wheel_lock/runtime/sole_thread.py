"""A daemon thread of which at most one exists at a time. It is started without a lock, and without waiting until it runs.

Threads, finalisers, and handlers of signals that interrupt another start may all start it at once, and a handler may then
wait for what the thread is to do. So no step of a start keeps others from starting it: each launches a short-lived thread,
and one atomic operation there decides which of these becomes the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from wheel_lock.runtime import native
from wheel_lock.runtime.greenlets import SystemThread

_START_S = 0.001  # polling interval for a thread that starts


class SoleThread(dict[None, SystemThread]):
    """The thread that exists: at most one entry. False as long as there is none.

    Attributes:
        launched: True while one is being started: more are not needed, and do no harm.
    """

    launched: bool = False

    @property
    def thread(self) -> SystemThread | None:
        return self.get(None)

    def start(self, thread: SystemThread, refused: Callable[[BaseException], object]) -> None:
        """Start ``thread`` unless there is one.

        Args:
            thread: The thread, which calls :meth:`end` when it ends.
            refused: Called, on a thread of its own, with the reason why the system could not start it; calls :meth:`end`.

        Raises:
            BaseException: The system cannot start a thread, or an interruption.
        """
        if self or self.launched:
            return
        begin, arguments = native.begin, (self._launch, thread, refused)
        self.launched = True  # no handler runs from here to the call, and behind that the thread is being started
        try:
            # Not thread.start(), which waits until the new thread runs. That would delay the timer's thread, and a
            # KeyboardInterrupt meanwhile can keep the new thread from ever running its target.
            native.start_new_thread(begin, arguments)
        except BaseException:
            self.launched = False
            raise

    def _launch(self, thread: SystemThread, refused: Callable[[BaseException], object]) -> None:
        first = self.setdefault(None, thread) is thread
        self.launched = False
        if first:
            try:
                thread.start()
            except BaseException as error:  # the system cannot start it
                refused(error)

    def join(self, timeout_s: float) -> None:
        """Wait until there is no thread, and none being started, at most ``timeout_s`` seconds."""
        until = monotonic() + timeout_s
        while (self.launched or self) and (left_s := until - monotonic()) > 0:
            thread = self.thread
            if thread is not None and thread.is_alive():
                thread.join(left_s)
            else:
                native.sleep(_START_S)

    def end(self) -> None:
        """From here on another thread may be started. Called by the thread, or in place of it."""
        self.pop(None, None)
