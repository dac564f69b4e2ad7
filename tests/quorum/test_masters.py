"""What a connection to a master says about it: a restart, and that it is another node of the quorum, too."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from wheel_lock.quorum.node import History, Masters, NodeConnector

RUN_ID = "0123456789abcdef" * 2 + "01234567"
OTHER = RUN_ID[::-1]


class Master:
    """What is asked, and answers, as a connection of redis-py."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.error: Exception | None = None

    def send_command(self, *words: str) -> None:
        assert words == ("INFO", "server")

    def read_response(self) -> bytes:
        if self.error is not None:
            raise self.error
        return f"run_id:{self.run_id}\r\nuptime_in_seconds:1000\r\n".encode()


class Node:
    """A node of a quorum, and what it connects to."""

    def __init__(self, masters: Masters, port: int) -> None:
        self.history = History(lambda: 5000.0, trusts_new=True)
        self.connector = NodeConnector(redis.Redis(port=port), self.history, masters)

    def connect(self, master: Any) -> None:
        self.connector._check(master)


@pytest.fixture
def nodes() -> tuple[Node, Node]:
    masters = Masters()
    return Node(masters, 1), Node(masters, 2)


def test_a_master_at_two_addresses_has_one_vote(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    first.connect(Master(RUN_ID))
    with pytest.raises(redis.ConnectionError, match="which has one vote"):
        second.connect(Master(RUN_ID))
    assert (first.connector.twin, second.connector.twin) == (None, "localhost:1")
    assert second.history.empty_since == 5000.0  # what it has granted as this node does not count
    second.connect(Master(OTHER))
    assert second.connector.twin is None


def test_an_address_that_another_server_has_got_is_free_for_that(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    first.connect(Master(RUN_ID))
    first.connect(Master(OTHER))
    second.connect(Master(RUN_ID))  # it has moved
    assert second.connector.twin is None


@pytest.mark.parametrize("run_id", ["", "n/a", "0" * 40])
def test_an_id_that_is_none_makes_no_two_masters_one_and_each_connection_may_follow_a_restart(
    nodes: tuple[Node, Node], run_id: str
) -> None:
    for node in nodes:
        node.connect(Master(run_id))
    assert nodes[0].history.empty_since > 0.0


def test_a_master_that_is_busy_is_asked_again_and_has_not_restarted(nodes: tuple[Node, Node]) -> None:
    master = Master(RUN_ID)
    nodes[0].connect(master)
    master.error = redis.ResponseError("BUSY Redis is busy running a script.")
    with pytest.raises(redis.ConnectionError, match="BUSY"):
        nodes[0].connect(master)
    assert nodes[0].history.empty_since < 5000.0
