"""The answers of the Sentinels about the master, and the conclusion from them. No I/O.

The newest configuration epoch wins; each failover has a larger one. A Sentinel may name the master of an earlier epoch for
a while, because it leads a failover that has not ended, was stopped, or is cut off. So a single answer is ignored while
newer ones are recent. Epochs may also start from zero again, with new Sentinels, so old answers expire.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from wheel_lock.net.connector import Server
from wheel_lock.runtime.native import allocate_lock

_RECENT_S = 15.0  # lifetime of an answer, unless the same Sentinel gives another
_REMEMBERED_S = 60.0  # time for which a minority that names the master of an earlier epoch is ignored


class Opinion(NamedTuple):
    """The answer of one Sentinel: a configuration epoch, and its master; None if the Sentinel considers it down."""

    epoch: int
    server: Server | None


class Belief(NamedTuple):
    """An epoch and the addresses of its master; there are several if the Sentinels use different ones."""

    epoch: int
    servers: tuple[Server, ...]


class Opinions:
    """The latest opinion of each Sentinel, and the belief that follows from them. From any thread.

    Args:
        sentinels: The number of Sentinels.
        now: Returns the time in seconds.

    Attributes:
        belief: The latest conclusion; None before the first answer.
        on_change: Called with the addresses whenever they differ from the previous ones, in the order of these changes.
    """

    def __init__(self, sentinels: int, now: Callable[[], float]) -> None:
        self._sentinels = sentinels
        self._now = now
        self._given: dict[int, tuple[Opinion, float]] = {}
        self.belief: Belief | None = None
        self._confirmed_at = -math.inf
        self._changes = 0
        self._guard = allocate_lock()
        self.on_change: Callable[[tuple[Server, ...]], object] = lambda servers: None

    def after_fork_in_child(self) -> None:
        """In a forked child: replace the guard, which a thread of the parent may hold."""
        self._guard = allocate_lock()

    def give(self, sentinel: int, opinion: Opinion | None) -> None:
        """Set the answer of a Sentinel; None if it does not know the master."""
        with self._guard:
            before = self._given.pop(sentinel, (None, 0.0))[0]
            self._changes += opinion != before
            if opinion is None:
                return
            self._given[sentinel] = opinion, self._now()
            belief = self.belief
            if belief is None or (opinion.epoch == belief.epoch and opinion.server in belief.servers):
                self._confirmed_at = self._now()

    def conclude(self, is_master: Callable[[Server], bool]) -> Belief | None:
        """Set and return the belief that follows from all recent opinions; None if they name no master.

        Args:
            is_master: Asks a server whether it is a master. Called only if the newest epoch may be obsolete.
        """
        while True:
            with self._guard:
                changes, choices = self._changes, self._choices()
            while len(choices) > 1 and not any(is_master(server) for server in choices[0].servers):
                choices.pop(0)
            with self._guard:
                if changes != self._changes:
                    continue  # another answer has arrived meanwhile
                if not choices or not choices[0].servers:
                    return None
                before, self.belief = self.belief, choices[0]
                if before is None or before.epoch != self.belief.epoch or before.servers != self.belief.servers:
                    self._confirmed_at = self._now()
                if before is None or set(before.servers) != set(self.belief.servers):
                    self.on_change(self.belief.servers)
                return self.belief

    def _choices(self) -> list[Belief]:
        """Return the possible beliefs, best first: the newest epoch, then older ones if the newest may be obsolete."""
        now = self._now()
        recent = [opinion for opinion, given_at in self._given.values() if now - given_at < _RECENT_S]
        if not recent:
            return []
        unconfirmed_s = now - self._confirmed_at
        believed = self.belief
        if self._is_majority(len(recent)) and unconfirmed_s >= _RECENT_S:
            believed = None  # the epochs have started from zero again
        epochs = {opinion.epoch for opinion in recent}
        choices: list[Belief] = []
        for epoch in sorted(epochs if believed is None else {*epochs, believed.epoch}, reverse=True):
            named = Counter(opinion.server for opinion in recent if opinion.epoch == epoch and opinion.server)
            majority = any(map(self._is_majority, named.values()))
            if choices and not majority and unconfirmed_s < _REMEMBERED_S:
                continue
            servers = [server for server, count in named.most_common() if not majority or self._is_majority(count)]
            if believed is not None and epoch == believed.epoch and epoch not in epochs:
                servers = list(believed.servers)
            choices.append(Belief(epoch, tuple(servers)))
        return choices

    def _is_majority(self, count: int) -> bool:
        return count > self._sentinels / 2
