"""Failovers: what Sentinels tell of them, heard on a connection of its own.

A master that has been cut off from the others may go on answering its clients, so it must not be waited for until it falls
silent: when the Sentinels say that another one is the master, it is left at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wheel_lock.engine.sentinel import SentinelConnector
from wheel_lock.engine.wakeups import WakeUps

if TYPE_CHECKING:
    from wheel_lock.engine.engine import Engine

_CHANNEL = b"+switch-master"


class Failovers:
    """Listens to the Sentinels of one service. Timer's thread only."""

    def __init__(
        self, engine: Engine, connector: SentinelConnector, launch: Callable[[Callable[[], None]], None]
    ) -> None:
        self._engine = engine
        self._connector = connector
        self._launch = launch
        self.wakeups = WakeUps(engine.timer, connector.watcher(), engine.options, launch)
        self._listens = False

    def listen(self) -> None:
        """Begin to listen, if that has not been done: something is held from now on."""
        if not self._listens:
            self._listens = True
            self.wakeups.listen(_CHANNEL, self)

    def begin_anew(self) -> None:
        """Nobody listens any more: after the death of the thread, in a forked child, when all has been hung up."""
        self._listens = False

    def listening(self, holds: bool) -> None:
        """The subscription begins to hold, or does not: what was published before was not heard, so ask."""
        if holds:
            try:
                self._launch(self._ask)
            except RuntimeError:
                pass  # no thread can be started; what refuses us will tell

    def woken(self, message: bytes) -> None:
        """The Sentinels have made another server the master: name, old address, new address."""
        words = message.split()
        if len(words) == 5 and words[0] == self._connector.service.encode():
            self._changed((words[3].decode("ascii", "replace"), words[4].decode("ascii", "replace")))

    def _ask(self) -> None:
        """On a helper thread: ask who is the master now."""
        try:
            host, port = self._connector.ask(self._engine.options.connect_timeout_s)
        except Exception:
            return  # nobody knows at present
        self._engine.tell(lambda: self._changed((host, str(port))))

    def _changed(self, master: tuple[str, str]) -> None:
        error = ConnectionAbortedError(f"the Sentinels say that {':'.join(master)} is the master now")
        for node in self._engine.nodes:
            node.leave_for(master, error)
        self._engine.wakeups.leave_for(master, error)
