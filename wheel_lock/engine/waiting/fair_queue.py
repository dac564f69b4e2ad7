"""The queue of a fair lock, as far as it is in this process.

The server keeps the order, so each waiter asks for itself: once to take its place, then at intervals to keep it, because
the server skips a waiter whose registration has expired. A wake-up names one waiter.
"""

from __future__ import annotations

from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.waiting.decisions import (
    JOINED,
    JOINED_UNHEARD,
    MESSAGE,
    SUBSCRIBED,
    TIME_UP,
    TRYING_AGAIN,
    QueueState,
)
from wheel_lock.engine.waiting.wait_queue import BaseWaitQueue, Contender
from wheel_lock.engine.waiting.waiter import Registry, Waiter
from wheel_lock.runtime.tokens import TOKEN_CHARACTERS


class FairWaitQueue(BaseWaitQueue):
    """A queue of which each waiter tries for itself."""

    __slots__ = ("_contenders",)

    def __init__(self, wait_queues: Registry, first: Waiter) -> None:
        super().__init__(wait_queues, first)
        self._contenders: dict[bytes, Contender] = {}  # by the waiter's name at the server

    def _name(self, waiter: Waiter) -> bytes:
        return waiter.request.lease.token[:-TOKEN_CHARACTERS]

    def join(self, waiter: Waiter) -> None:
        """Add a waiter whose first try has taken a place at the server."""
        super().join(waiter)
        self._contenders[self._name(waiter)] = contender = Contender(self, waiter)
        self.handle(contender, JOINED_UNHEARD if self._subscribed else JOINED)

    def _removed(self, waiter: Waiter) -> None:
        contender = self._contenders.pop(self._name(waiter))
        contender.waiter = None
        self.timer.wheel.cancel(contender)

    def drain(self) -> list[Waiter]:
        for contender in self._contenders.values():
            self.timer.wheel.cancel(contender)
        self._contenders.clear()
        return super().drain()

    def on_waiter_timeout(self, waiter: Waiter) -> None:
        """Give the waiter a last try, because the message that it is first may have been lost."""
        waiter.begin_last()
        self.handle(self._contenders[self._name(waiter)], TIME_UP)

    def on_subscribed(self, holds: bool) -> None:
        super().on_subscribed(holds)
        if holds:
            for contender in list(self._contenders.values()):
                self.handle(contender, SUBSCRIBED)

    def on_message(self, message: bytes) -> None:
        """Have the waiter try that a message names. Each user who may publish can have sent it: the server decides."""
        contender = self._contenders.get(message)
        if contender is not None:
            self.handle(contender, MESSAGE)

    def _refused(self, contender: Contender, waiter: Waiter, request: Acquire, state: QueueState) -> None:
        if state is not TRYING_AGAIN:  # in which one more try follows, because the message may have been lost
            super()._refused(contender, waiter, request, state)

    def _look_later(self, contender: Contender, retry_ms: int | None) -> None:
        """Schedule the next try, which also renews the waiter's registration."""
        assert contender.waiter is not None
        self._schedule(contender, contender.waiter.waiter_ttl_s / 3, retry_ms)
