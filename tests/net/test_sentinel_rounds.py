"""Rounds of questions to Sentinels, one behind the other."""

from __future__ import annotations

import queue
import time

import pytest
import redis
from redis.sentinel import Sentinel

from wheel_lock.net import sentinel
from wheel_lock.net.clients import connector_for
from wheel_lock.net.connector import NothingListens


class LateQueue:
    """A queue whose ``put`` takes effect at once, and returns half a second later: the thread that calls it is starved."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.get = self._queue.get

    def put(self, item: object) -> None:
        self._queue.put(item)
        time.sleep(0.5)


def test_a_sentinel_that_has_answered_is_asked_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinel, "SimpleQueue", LateQueue)
    client: redis.Redis = Sentinel([("127.0.0.1", 1)]).master_for("locks")
    connector = connector_for(client)
    assert isinstance(connector, sentinel.SentinelConnector)
    for _ in range(2):
        with pytest.raises(NothingListens):
            connector.ask(5.0)
        time.sleep(0.3)  # longer than the others of a round have
