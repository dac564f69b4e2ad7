"""The test's side of actor.py: start such a process, tell its hands what to do, kill it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.faults.holders import ANSWER_S, Peer
from tests.support.nursery import Nursery
from tests.support.redis_server import RedisServer
from tests.support.standstill import Standstill, Standstills, running
from tests.support.waiting import eventually

TIMEOUT_S = 1.6  # a renewal comes in time although the machine stands still for a while
OUTLIVED_S = 1.2 * TIMEOUT_S  # what is held, or who waits, after so long has been renewed or heard of meanwhile
LOOK_S = 0.35  # what a waiter may need to notice on a busy machine
CLOCKS_S = 0.01  # by so much readings of two clocks may differ


@dataclass(frozen=True)
class Deed:
    """What came of an order to a hand. `before` and `after` are readings of CLOCK_MONOTONIC.

    `stood` is when the machine has kept the actor from running.
    """

    event: str
    hand: str
    before: float
    after: float
    result: Any
    error: str
    stood: list[Standstill]

    def took(self, since: float, standstills: Standstills) -> float:
        """The time from `since` until it was done, without that in which the actor or the test stood still."""
        return running(since, self.after, [*self.stood, *standstills.seen])


@functools.cache
def _nursery() -> Nursery:
    nursery = Nursery("tests.crowds.actor")
    atexit.register(nursery.close)
    return nursery


class Actor(Peer):
    """A process with hands. Use it in a `with`."""

    def __init__(self, url: str, **context: Any) -> None:
        to_peer, from_peer = os.pipe(), os.pipe()
        theirs = (to_peer[0], from_peer[1])
        settings = {"url": url, "context": context}
        self._process = _nursery().start(json.dumps(settings), fds=theirs)
        for fd in theirs:
            os.close(fd)
        super().__init__(to_peer[1], from_peer[0])

    def __enter__(self) -> Self:
        eventually(lambda: self.pid, timeout_s=ANSWER_S, message="the actor has started")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._hang_up()

    def kill(self) -> None:
        """SIGKILL, and return when it is gone."""
        self._process.kill()

    def deeds(self, event: str = "", hand: str = "") -> list[Deed]:
        """What its hands have reported so far."""
        deeds = [Deed(**{**facts, "stood": [Standstill(*times) for times in facts["stood"]]}) for facts in self.events]
        return [deed for deed in deeds if event in ("", deed.event) and hand in ("", deed.hand)]

    def deed(self, event: str, hand: str, *, timeout_s: float = ANSWER_S) -> Deed:
        """The latest of a hand, as soon as it has done it."""
        told = eventually(
            lambda: self.deeds(event, hand), timeout_s=timeout_s, message=f"{hand} does: {event}", interval_s=0.005
        )
        return told[-1]

    def hold(self, hand: str, name: str, **what: Any) -> Deed:
        """Have a hand acquire a lock, which must succeed."""
        self.order("acquire", hand=hand, name=name, **what)
        deed = self.deed("acquire", hand)
        assert deed.result is True, deed
        return deed

    def let_go(self, hand: str, name: str) -> Deed:
        """Have a hand release a lock, which it must have held until then."""
        self.order("release", hand=hand, name=name)
        deed = self.deed("release", hand)
        assert deed.result is True, deed
        return deed


def expiries(server: RedisServer, name: str) -> list[float]:
    """In how many seconds those who may share a read-write lock or a semaphore expire."""
    members: Any = server.client().zrange(name, 0, -1, withscores=True)
    return [score / 1000 - time.time() for _, score in members if score > 0]
