"""The base class of contexts."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import partial
from typing import Any, NoReturn

from wheel_lock.diagnostics.debug_socket import SERVER_OF, serve_debug
from wheel_lock.diagnostics.dump import TextFile, dump
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, noop
from wheel_lock.errors import ContextClosed
from wheel_lock.locks.callers import Side
from wheel_lock.locks.operations import ask
from wheel_lock.observe import ContextStats, Health, HeldLock
from wheel_lock.options import seconds
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.runtime.timer_threads import MustNotWait


class BaseContext(Side):
    """An engine, for threads or for tasks."""

    def stats(self) -> ContextStats:
        """Return a frozen snapshot of the counters. O(1) in the number of locks."""
        return self._engine.stats()

    def held(self) -> list[HeldLock]:
        """Return the locks that are held now, in order of acquisition. O(n)."""
        return self._engine.held_locks()

    def health(self) -> Health:
        """Return whether locks can be acquired and are kept alive, for readiness probes. Does not wait.

        No server is asked: the report says what the connections, the renewals and the timer's thread have shown so far. If
        there is no connection to a node, the attempt to make one begins, so that a later call has more to say; a context
        that has not been used yet is ``ok``, and not connected.
        """
        return self._engine.health()

    def dump(self, file: TextFile | None = None) -> None:
        """Write what is held and waited for, the nodes and the counters as text, for a person to read. O(n).

        Tokens are shown as their ids. No server is asked, so it works during an outage, too.

        Args:
            file: A text file; ``sys.stderr`` by default.

        Raises:
            TypeError: ``file`` cannot be written to.
        """
        dump(self._engine, file)

    def serve_debug(self, path: str | os.PathLike[str] | None = None) -> str:
        """Open a unix socket at which ``wheel-lock top`` shows this context; return its path.

        Only this user, and root, can connect. It is removed when the context is closed or the process ends; a socket that
        an ended process has left at ``path`` is replaced. A forked child does not serve it. A second call returns the path
        of the first.

        Args:
            path: Where, at most 107 bytes; by default ``<pid>.sock`` in a directory that only this user can read.

        Raises:
            ValueError: The path is too long, or the context is shown at another path already.
            TypeError: ``path`` is not a path.
            OSError: The socket cannot be made, or another process serves one at ``path``.
            ContextClosed: The context has been closed.
        """
        if self._engine.over:
            raise ContextClosed("The context has been closed")
        return serve_debug(self._engine, path)

    def _end_debug(self) -> None:
        """Remove the socket of :meth:`serve_debug`."""
        server = SERVER_OF.get(self._engine)
        if server is not None:
            server.close()

    @property
    def timer(self) -> HashedWheelTimer:
        """The timer that renews the locks; its ``new_timeout`` may be used for other purposes, too."""
        return self._engine.timer

    @property
    def closed(self) -> bool:
        """True if the context has been closed."""
        return self._engine.closed

    @property
    def _state(self) -> str:
        """The state as shown by ``repr()``."""
        return "closed" if self._engine.closed else f"{self._engine.held_count} held"

    @property
    def _under(self) -> str:
        """The prefix as shown by ``repr()``."""
        prefix = self._engine.options.prefix
        return f" {prefix.decode()!r}" if prefix else ""

    def __reduce__(self) -> NoReturn:
        # Not even a shallow copy: the first of the two to be collected would close the connections of both.
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: use the same one everywhere in a process, and make "
            "another in each other process; a held lock is handed over with export() and adopt()"
        )

    def _close(self, timeout: float | None) -> Generator[Any, None, None]:
        """Close the context; on the thread of a timer without waiting."""
        limit_s = self._closing_time_s(timeout)
        self._end_debug()
        if limit_s is None:
            return
        try:
            yield from ask(self, partial(self._engine.close, limit_s), limit_s)
        except MustNotWait:
            close_later(self._engine, limit_s)

    def _closing_time_s(self, timeout: float | None) -> float | None:
        """Return the time limit of a close in seconds; None if the engine is closed."""
        engine = self._engine
        limit_s = engine.options.close_timeout_s if timeout is None else seconds("timeout", timeout, above=0.0)
        return None if engine.over else limit_s


def close_later(engine: Engine, limit_s: float | None = None) -> None:
    """Close ``engine`` within ``limit_s`` seconds, by default its ``close_timeout``, without waiting."""
    limit_s = engine.options.close_timeout_s if limit_s is None else limit_s
    engine.post_if_running(partial(engine.close, limit_s, Future(noop)))
