"""The event loop of a simulated process."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.processes import Process


class EventLoop(asyncio.BaseEventLoop):
    """An event loop that the world runs, with the clock of its process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        super().__init__()
        self._selector = SimpleNamespace(select=lambda timeout: ())
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self._process.clock.now()

    def _process_events(self, events: object) -> None: ...

    def _write_to_self(self) -> None:
        self._process.poke_loop()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        world, error = self._process.world, context.get("exception")
        if not world.over:
            world.rules.broken("internal failure", f"an event loop: {context['message']} {error!r}", error)

    def step(self) -> None:
        """Run what is ready."""
        asyncio._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            asyncio._set_running_loop(None)

    @property
    def due_in_s(self) -> float | None:
        """Seconds until something is to be run; None without anything."""
        if self._ready:  # type: ignore[attr-defined]
            return 0.0
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return max(scheduled[0].when() - self.time(), 0.0) if scheduled else None
