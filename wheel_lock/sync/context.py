"""The base class of contexts for threads: how they are closed."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from wheel_lock.engine.engine import Engine
from wheel_lock.errors import WheelLockError
from wheel_lock.locks.context import BaseContext, close_later
from wheel_lock.runtime.interruptions import finaliser, insist, uninterrupted_start
from wheel_lock.sync.call import ThreadSide, run


class ThreadContext(ThreadSide, BaseContext):
    """A context for threads."""

    def close(self, timeout: float | None = None) -> None:
        """End every lease, releasing them at the server unless ``release_on_close`` is off, and close the connections.

        Locks that are still held are lost, for the reason "context closed". Closing twice is harmless.

        Args:
            timeout: Time limit in seconds; ``close_timeout`` by default. Locks that are not released by then expire.
        """
        run(self._close(timeout))

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
            engine.post_if_running(engine.retire)
