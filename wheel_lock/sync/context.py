"""The base class of contexts for threads: how they are closed."""

from __future__ import annotations

import signal
from types import TracebackType
from typing import Self

from wheel_lock.engine.engine import Engine
from wheel_lock.errors import WheelLockError
from wheel_lock.locks.context import BaseContext, close_later
from wheel_lock.runtime.interruptions import finaliser, insist, uninterrupted_start
from wheel_lock.sync.call import ThreadSide, run
from wheel_lock.sync.process_end import close_on_signals


class ThreadContext(ThreadSide, BaseContext):
    """A context for threads."""

    def close(self, timeout: float | None = None) -> None:
        """End every lease, releasing them at the server unless ``release_on_close`` is off, and close the connections.

        Locks that are still held are lost, for the reason "context closed". Closing twice is harmless.

        Args:
            timeout: Time limit in seconds; ``close_timeout`` by default. Locks that are not released by then expire.
        """
        run(self._close(timeout))

    def close_on_signals(self, *signals: int) -> tuple[signal.Signals, ...]:
        """Have signals release the held locks before they end the process, as :meth:`close` does.

        For programs without a handler of their own: Python's default for SIGTERM is to die without any clean-up. The main
        thread waits while the locks are released, for ``close_timeout`` at most; then the process ends by the signal.
        No ``finally`` and no ``atexit`` function runs; another thread goes on until the end. A second signal ends the
        process at once. A program with a handler keeps it: it should end by ``sys.exit()``, which releases, too.

        A forked child inherits this: its own locks are released.

        Args:
            signals: Numbers, such as ``signal.SIGTERM``, which is the default.

        Returns:
            The signals that release the locks now: those without another handler, and not ignored.

        Raises:
            ValueError: The default of a signal is not to end the process, or the caller is not the main thread.
        """
        return close_on_signals(self._engine, signals)

    def __enter__(self) -> Self:
        return self

    @uninterrupted_start
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except WheelLockError:
            raise
        except BaseException:
            insist(close_later, self._engine)
            raise

    @finaliser
    def __del__(self) -> None:
        engine: Engine | None = getattr(self, "_engine", None)
        if engine is not None:
            engine.retire()
