"""The end of an engine: a bulk release within a bounded time, then the end of its connections; and its ends by failure."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.engine.future import Exit, Future
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.bulk_operations import Sweep
from wheel_lock.errors import ContextClosed
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.ends import ANEW, End, Part, end_all
from wheel_lock.runtime.failures import guarded

_LOOK_AGAIN_S = 0.02
_LINGER_S = 0.5  # the connections of a retired engine outlive its last use for so long: a lock object may be left
_CALLER_S = 0.25  # at most, for a caller's own request: the caller may be the one that closes, in a signal's handler


class Swaps:
    """The swaps of one engine as a part that ends behind its nodes. Timer's thread only.

    Requests of nodes are refused by then. A swap may wait for an alarm, which is gone, and perhaps has no caller yet: one
    that was interrupted releases later.
    """

    def __init__(self, leases: LeaseTable) -> None:
        self._swaps = leases.swaps

    def end(self, how: End, error: Exception) -> None:
        """Fail the swaps, unless they are those of a parent process."""
        if how is End.FORKED:
            self._swaps.clear()
        elif how in ANEW:
            for swap in tuple(self._swaps.values()):
                guarded(None, swap.on_unavailable, error)


class Shutdown:
    """Ends one engine. Timer's thread only.

    Args:
        parts: The parts of the engine, in the order of their ends.
        leases: That among them which holds leases.
    """

    def __init__(self, parts: Sequence[Part], leases: LeaseTable) -> None:
        self._parts = parts
        self._leases = leases
        self._state = leases.state
        self._timer = leases.timer
        self._router = leases.router
        self._retired = False
        self._next_look: Alarm | None = None  # whether a retired engine is still in use
        self._closing: list[Future[None]] = []  # of the callers that close the engine

    def close(self, timeout_s: float, future: Future[None], exiting: bool) -> None:
        state, timer = self._state, self._timer
        if state.closed:
            if self._closing:  # it waits for the close that is under way, for as long as its own may take
                self._closing.append(future)
                timer.call_at(timer.now + timeout_s, lambda now: future.set_result(None), state)
            else:
                future.set_result(None)
            return
        self._closing.append(future)
        state.closed = True
        self._end_parts(End.EXITING if exiting else End.CLOSING, ContextClosed("The context has been closed"))
        until = timer.now + timeout_s
        hang_up = Future[None](lambda: timer.post(lambda: self._await_caller(until), state))
        sweep = Sweep(self._leases, hang_up)
        # Without a connection nothing is released: making one could take longer than ``timeout_s``.
        if state.options.release_on_close and any(node.connected for node in self._router.nodes):
            timer.call_at(until, lambda now: sweep.stop(), state)
            sweep.pump()
        else:
            sweep.stop()

    def _end_parts(self, how: End, error: Exception) -> None:
        end_all(self._parts, how, error, self._state)

    def _await_caller(self, until: float) -> None:
        """Hang up when the caller on the direct path has its reply: it releases itself what it is granted now."""
        timer, direct = self._timer, self._state.direct
        look_until = min(until, timer.now + _CALLER_S)

        def look(now: float) -> None:
            if direct.claim and timer.now < look_until:
                timer.call_at(timer.now + timer.scale.tick_s, look, self._state)
            else:
                if self._state.exiting is Exit.SIGNAL:
                    direct.give_up()
                self._hang_up(until)

        look(timer.now)

    def _hang_up(self, until: float) -> None:
        """Close the connections as soon as all replies have been read, or the time is up."""
        if not self._closing:
            return
        timer, nodes = self._timer, self._router.nodes
        waited_for = next((node for node in nodes if node.awaits_replies), None)
        if waited_for is not None and timer.now < until:
            # In the next turn: what the replies have posted, such as a WAIT for the replicas of a grant, is sent before.
            waited_for.when_replied = lambda: timer.post(lambda: self._hang_up(until), self._state)
            timer.call_at(until + timer.scale.tick_s, lambda now: self._hang_up(until), self._state)
            return
        if any(node.begins for node in nodes) and timer.now < until:
            timer.call_at(timer.now + _LOOK_AGAIN_S, lambda now: self._hang_up(until), self._state)
            return
        self._end_close(ContextClosed("The context has been closed"))

    def _end_close(self, error: Exception) -> None:
        self._end_parts(End.CLOSED, error)
        closing, self._closing = self._closing, []
        for future in closing:
            future.set_result(None)

    def end(self, how: End, error: Exception) -> None:
        """Forget, in a forked child, a close that the parent process is in the middle of."""
        if how is End.FORKED:
            self._closing.clear()
            self._next_look = None

    def stop(self, error: Exception) -> None:
        """End without a release, with ``error``: the timer stops for good, in this very turn."""
        if not self._state.closed:
            self._state.closed = True
            self._end_parts(End.CLOSING, error)
        self._end_close(error)  # also during a close, which will not get that far any more

    def retire(self) -> None:
        """Close the connections as soon as nothing is held, also those that are made later. From any thread."""
        self._retired = True  # also if no thread runs: a lock object may be left, and be used later
        self._state.post_if_running(self.on_lease_ended)

    def on_lease_ended(self) -> None:
        """Close the connections of a retired engine soon if its last lease has ended, or one was made without any."""
        if self._retired and not self._leases.held:
            self._look_later()

    def _look_later(self) -> None:
        self._timer.cancel(self._next_look)
        self._next_look = self._timer.call_at(self._timer.now + _LINGER_S, lambda now: self._retire(), self._state)

    def _retire(self) -> None:
        if self._leases.held or self._state.closed:
            return
        nodes = self._router.nodes
        in_use = self._leases.listener or self._state.direct.claim
        if not in_use and not any(node.ready and node.busy for node in nodes):
            self._end_parts(End.RETIRED, ConnectionAbortedError("nothing is held"))
            if not any(node.busy for node in nodes):
                return
            # A clean-up that is left gets a connection once more.
        self._look_later()
