"""The end of an engine: a bulk release within a bounded time, then the end of its connections; and its ends by failure."""

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
_CALLER_S = 0.25  # at most, for a caller's own request: the caller may be the one that closes, in a signal's handler


class Shutdown:
    """Ends one engine. Timer's thread only."""

    def __init__(self, leases: LeaseTable, router: SingleRouter, wait_queues: WaitQueueRegistry) -> None:
        self._leases = leases
        self._state = leases.state
        self._timer = leases.timer
        self._router = router
        self._wait_queues = wait_queues
        self._retired = False
        self._closing: Future[None] | None = None  # of the caller that closes the engine

    def close(self, timeout_s: float, future: Future[None], exiting: bool) -> None:
        state, timer, closed = self._state, self._timer, ContextClosed("The context has been closed")
        if state.closed:
            future.set_result(None)
            return
        state.closed = True
        self._closing = future
        self._state.direct.end()
        if exiting:
            self._wait_queues.drop_all()
        else:
            self._wait_queues.fail(closed)
        self._router.begin_anew(lambda wakeups: wakeups.close(closed))
        until = timer.now + timeout_s
        hang_up = Future[None](lambda: timer.post(lambda: self._await_caller(until, future), state))
        sweep = Sweep(self._leases, self._leases.held, hang_up)
        # Without a connection nothing is released: making one could take longer than ``timeout_s``.
        if state.options.release_on_close and any(node.connected for node in self._router.nodes):
            timer.call_at(until, lambda now: sweep.stop(), state)
            sweep.pump()
        else:
            sweep.stop()

    def _await_caller(self, until: float, future: Future[None]) -> None:
        """Hang up when the caller on the direct path has its reply: it releases itself what it is granted now."""
        timer, direct = self._timer, self._state.direct
        look_until = min(until, timer.now + _CALLER_S)

        def look(now: float) -> None:
            if direct.claim and timer.now < look_until:
                timer.call_at(timer.now + timer.scale.tick_s, look, self._state)
            else:
                self._hang_up(until, future)

        look(timer.now)

    def _hang_up(self, until: float, future: Future[None]) -> None:
        """Close the connections as soon as all replies have been read, or the time is up."""
        if future.done:
            return
        timer, nodes = self._timer, self._router.nodes
        waited_for = next((node for node in nodes if node.awaits_replies), None)
        if waited_for is not None and timer.now < until:
            # In the next turn: what the replies have posted, such as a WAIT for the replicas of a grant, is sent before.
            waited_for.when_replied = lambda: timer.post(lambda: self._hang_up(until, future), self._state)
            timer.call_at(until + timer.scale.tick_s, lambda now: self._hang_up(until, future), self._state)
            return
        if any(node.begins for node in nodes) and timer.now < until:
            timer.call_at(timer.now + _LOOK_AGAIN_S, lambda now: self._hang_up(until, future), self._state)
            return
        self._close_nodes(ContextClosed("The context has been closed"))

    def _close_nodes(self, error: Exception) -> None:
        """Close the connections to the nodes, which ends a close that is under way."""
        try:
            for node in self._router.nodes:
                node.close(error)
        finally:
            closing, self._closing = self._closing, None
            if closing is not None:
                closing.set_result(None)

    def stop(self) -> None:
        """End without a release: the timer stops for good, in this very turn."""
        stopped = ContextClosed("The timer has been stopped")
        if not self._state.closed:
            self._state.closed = True
            self._state.direct.end()
            self._wait_queues.fail(stopped)
            self._router.begin_anew(lambda wakeups: wakeups.close(stopped))
        # Also during a close, which will not get that far any more.
        self._leases.mark_lost(list(self._leases.held), LossReason.CONTEXT_CLOSED)
        self._close_nodes(stopped)

    def begin_anew(self, reason: LossReason, error: Exception, message: str) -> None:
        """Lose everything for ``reason`` and start empty; requests end with ``error``, waiters with ``message``."""
        leases, router = self._leases, self._router
        self._state.deaths += 1
        guarded(None, self._state.direct.end)
        leases.mark_lost(list(leases.held), reason)
        steps: list[Callable[[], object]] = [partial(node.restart, error) for node in router.nodes]
        # Requests of nodes are refused by now. Swaps wait for an alarm, which is gone, and perhaps have no caller yet: one
        # that was interrupted releases later.
        steps.extend(partial(swap.on_unavailable, error) for swap in tuple(leases.swaps.values()))
        steps.append(partial(self._wait_queues.fail, LockUnavailable(message)))
        steps.append(partial(router.begin_anew, lambda wakeups: wakeups.restart(error)))
        steps.extend(renewer.restart for renewer in router.shards)
        for step in steps:
            guarded(None, step)  # the failure of a step does not prevent the others
        leases.held.clear()
        leases.acquiring = 0

    def retire(self) -> None:
        self._retired = True
        self.on_lease_ended()

    def on_lease_ended(self) -> None:
        """Close the connections if the last lease of a retired engine has ended."""
        if self._retired and not self._leases.held:
            self._timer.post(self._retire, self._state)  # after the reply that is being read has been processed

    def _retire(self) -> None:
        if self._leases.held or self._state.closed:
            return
        nodes = self._router.nodes
        if not self._wait_queues and not any(node.ready and node.busy for node in nodes):
            self._state.direct.end()
            for node in nodes:
                node.retire()
            self._router.begin_anew(PubSub.retire)
            if not any(node.busy for node in nodes):
                return
            # A clean-up that is left gets a connection once more.
        self._timer.call_at(self._timer.now + _LOOK_AGAIN_S, lambda now: self._retire(), self._state)
