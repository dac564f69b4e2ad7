"""The end of a context: everything is released in bulk, within a bounded time, and then the connections are closed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from wheel_lock.engine.future import Future
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.bulk_operations import Sweep
from wheel_lock.engine.topology.single import SingleRouter
from wheel_lock.engine.waiting.registry import WaitQueueRegistry
from wheel_lock.errors import ContextClosed, LockUnavailable, LossReason
from wheel_lock.net.pubsub import PubSub
from wheel_lock.runtime.failures import guarded

_LOOK_AGAIN_S = 0.02


class Ending:
    """How one engine comes to its end. Timer's thread only."""

    def __init__(self, leases: LeaseTable, router: SingleRouter, lines: WaitQueueRegistry) -> None:
        self._leases = leases
        self._state = leases.state
        self._timer = leases.timer
        self._router = router
        self._lines = lines
        self._retired = False

    def close(self, timeout_s: float, future: Future[None], exiting: bool) -> None:
        """See :meth:`Engine.close`."""
        state, timer, closed = self._state, self._timer, ContextClosed("The context has been closed")
        if state.closed:
            future.set_result(None)
            return
        state.closed = True
        if exiting:
            self._lines.drop_all()
        else:
            self._lines.fail(closed)
        self._router.begin_anew(lambda wakeups: wakeups.close(closed))
        until = timer.now + timeout_s
        hang_up = Future[None](lambda: timer.post(lambda: self._hang_up(until, future), state))
        sweep = Sweep(self._leases, self._leases.held, hang_up)
        # Without a connection there is nobody to release to, and making one could take longer than we may.
        if state.options.release_on_close and any(node.connected for node in self._router.nodes):
            timer.call_at(until, lambda now: sweep.stop(), state)
            sweep.pump()
        else:
            sweep.stop()

    def _hang_up(self, until: float, future: Future[None]) -> None:
        """Hang up when what was asked for before the close has been answered, or the time is up."""
        if future.done:
            return
        timer, nodes = self._timer, self._router.nodes
        waited_for = next((node for node in nodes if node.awaits_replies), None)
        if waited_for is not None and timer.now < until:
            waited_for.when_replied = lambda: self._hang_up(until, future)
            again = until + timer.scale.tick_s
            timer.call_at(again, lambda now: self._hang_up(until, future), self._state)
            return
        try:
            for node in nodes:
                node.close(ContextClosed("The context has been closed"))
        finally:
            future.set_result(None)

    def stop(self) -> None:
        """The timer stops for good, in this very turn: nothing can be released any more."""
        stopped = ContextClosed("The timer has been stopped")
        if not self._state.closed:
            self._state.closed = True
            self._lines.fail(stopped)
            self._leases.mark_lost(list(self._leases.held), LossReason.CONTEXT_CLOSED)
            self._router.begin_anew(lambda wakeups: wakeups.close(stopped))
        for node in self._router.nodes:
            node.close(stopped)  # also where a close is under way: it does not come to this any more

    def begin_anew(self, reason: LossReason, error: Exception, message: str) -> None:
        """Lose everything for ``reason`` and start empty; requests end with ``error``, waiters are told ``message``."""
        leases, router = self._leases, self._router
        self._state.deaths += 1
        leases.mark_lost(list(leases.held), reason)
        steps: list[Callable[[], object]] = [partial(node.restart, error) for node in router.nodes]
        # What a node keeps is refused by now. Others wait for an alarm, which is gone, and perhaps nobody waits for them
        # yet: who was interrupted, and releases later.
        steps.extend(partial(swap.on_unavailable, error) for swap in tuple(leases.swaps.values()))
        steps.append(partial(self._lines.fail, LockUnavailable(message)))
        steps.append(partial(router.begin_anew, lambda wakeups: wakeups.restart(error)))
        steps.extend(renewer.restart for renewer in router.shards)
        for step in steps:
            guarded(None, step)  # one that fails, too, keeps none of the others from its part
        leases.held.clear()
        leases.acquiring = 0

    def retire(self) -> None:
        """The context object is gone: hang up as soon as nothing is held."""
        self._retired = True
        self.look()

    def look(self) -> None:
        """A lease has ended: hang up if it was the last one that kept a retired engine."""
        if self._retired and not self._leases.held:
            self._timer.post(self._retire, self._state)  # after the reply that is being read has been dealt with

    def _retire(self) -> None:
        if self._leases.held or self._state.closed:
            return
        nodes = self._router.nodes
        if not self._lines and not any(node.ready and node.busy for node in nodes):
            for node in nodes:
                node.retire()
            self._router.begin_anew(PubSub.retire)
            if not any(node.busy for node in nodes):
                return
            # What is left to be cleaned up gets a connection once more.
        self._timer.call_at(self._timer.now + _LOOK_AGAIN_S, lambda now: self._retire(), self._state)
