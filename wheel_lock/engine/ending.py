"""The end of a context: everything is released in bulk, within a bounded time, and then the connections are closed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from wheel_lock.engine.bulk import Sweep
from wheel_lock.engine.operation import Operation
from wheel_lock.engine.wakeups import WakeUps
from wheel_lock.errors import ContextClosed, LockUnavailable, LossReason
from wheel_lock.failures import guarded

if TYPE_CHECKING:
    from wheel_lock.engine.engine import Engine

_LOOK_AGAIN_S = 0.02


class Ending:
    """How one engine comes to its end. Timer's thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._retired = False

    def close(self, timeout_s: float, operation: Operation[None], exiting: bool) -> None:
        """See :meth:`Engine.close`."""
        engine, closed = self._engine, ContextClosed("The context has been closed")
        if engine.closed:
            operation.complete(None)
            return
        engine.closed = True
        if exiting:
            engine.lines.dissolve()
        else:
            engine.lines.fail(closed)
        engine.listen_anew(lambda wakeups: wakeups.close(closed))
        until = engine.timer.now + timeout_s
        hang_up = Operation[None](lambda: engine.timer.post(lambda: self._hang_up(until, operation), engine))
        sweep = Sweep(engine, engine.held, hang_up)
        # Without a connection there is nobody to release to, and making one could take longer than we may.
        if engine.options.release_on_close and any(node.connected for node in engine.nodes):
            engine.timer.call_at(until, lambda now: sweep.stop(), engine)
            sweep.pump()
        else:
            sweep.stop()

    def _hang_up(self, until: float, operation: Operation[None]) -> None:
        """Hang up when what was asked for before the close has been answered, or the time is up."""
        if operation.done:
            return
        engine = self._engine
        nodes = engine.nodes
        waited_for = next((node for node in nodes if node.awaits_replies), None)
        if waited_for is not None and engine.timer.now < until:
            waited_for.when_replied = lambda: self._hang_up(until, operation)
            again = until + engine.timer.scale.tick_s
            engine.timer.call_at(again, lambda now: self._hang_up(until, operation), engine)
            return
        try:
            for node in nodes:
                node.close(ContextClosed("The context has been closed"))
        finally:
            operation.complete(None)

    def stop(self) -> None:
        """The timer stops for good, in this very turn: nothing can be released any more."""
        engine, stopped = self._engine, ContextClosed("The timer has been stopped")
        if not engine.closed:
            engine.closed = True
            engine.lines.fail(stopped)
            engine.lose(list(engine.held), LossReason.CONTEXT_CLOSED)
            engine.listen_anew(lambda wakeups: wakeups.close(stopped))
        for node in engine.nodes:
            node.close(stopped)  # also where a close is under way: it does not come to this any more

    def begin_anew(self, reason: LossReason, error: Exception, told: str) -> None:
        """Lose everything for ``reason`` and start empty; requests end with ``error``, waiters are told ``told``."""
        engine = self._engine
        engine.deaths += 1
        engine.lose(list(engine.held), reason)
        steps: list[Callable[[], object]] = [partial(node.restart, error) for node in engine.nodes]
        # What a node keeps is refused by now. Others wait for an alarm, which is gone, and perhaps nobody waits for them
        # yet: who was interrupted, and releases later.
        steps.extend(partial(swap.refused, error) for swap in tuple(engine.swaps.values()))
        steps.append(partial(engine.lines.fail, LockUnavailable(told)))
        steps.append(partial(engine.listen_anew, lambda wakeups: wakeups.restart(error)))
        steps.extend(renewer.restart for renewer in engine.renewers)
        for step in steps:
            guarded(None, step)  # one that fails, too, keeps none of the others from its part
        engine.held.clear()
        engine.acquiring = 0

    def retire(self) -> None:
        """The context object is gone: hang up as soon as nothing is held."""
        self._retired = True
        self.look()

    def look(self) -> None:
        """A lease has ended: hang up if it was the last one that kept a retired engine."""
        if self._retired and not self._engine.held:
            self._engine.timer.post(
                self._retire, self._engine
            )  # after the reply that is being read has been dealt with

    def _retire(self) -> None:
        engine = self._engine
        if engine.held or engine.closed:
            return
        nodes = engine.nodes
        if not engine.lines and not any(node.ready and node.busy for node in nodes):
            for node in nodes:
                node.retire()
            engine.listen_anew(WakeUps.retire)
            if not any(node.busy for node in nodes):
                return
            # What is left to be cleaned up gets a connection once more.
        engine.timer.call_at(engine.timer.now + _LOOK_AGAIN_S, lambda now: self._retire(), engine)
