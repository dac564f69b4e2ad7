"""Which of what the Sentinels say is believed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from wheel_lock.net.connector import Server
from wheel_lock.net.sentinel_reports import Belief, Opinion, Opinions

A: Server = ("10.0.0.1", "6379")
A_BY_NAME: Server = ("redis-a", "6379")
B: Server = ("10.0.0.2", "6379")


class Asked:
    """Opinions, a clock that a test moves, and servers that say whether they are masters."""

    def __init__(self, sentinels: int = 3) -> None:
        self.now = 1000.0
        self.opinions = Opinions(sentinels, lambda: self.now)
        self.masters = {A, A_BY_NAME, B}
        self.asked: list[Server] = []
        self.told: list[tuple[Server, ...]] = []
        self.opinions.on_change = self.told.append
        self.meanwhile: Callable[[], object] = lambda: None

    def _is_master(self, server: Server) -> bool:
        self.asked.append(server)
        self.meanwhile()
        return server in self.masters

    def say(self, *opinions: tuple[int, Server | None] | None) -> None:
        """Have the first Sentinel say the first of these, and so on; None for one that says nothing."""
        for number, opinion in enumerate(opinions):
            if opinion is not None:
                self.opinions.give(number, Opinion(*opinion))

    def after(self, *opinions: tuple[int, Server | None] | None) -> tuple[Server, ...]:
        """Have them say that; return what is believed then."""
        self.say(*opinions)
        return self.believed

    @property
    def believed(self) -> tuple[Server, ...]:
        belief = self.opinions.conclude(self._is_master)
        return () if belief is None else belief.servers


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_nothing_is_believed_before_the_first_answer(asked: Asked) -> None:
    assert asked.believed == ()
    assert asked.told == []


@pytest.mark.parametrize("leader", range(3))
def test_the_newest_epoch_wins_whoever_says_so(asked: Asked, leader: int) -> None:
    assert asked.after(*[(2, B) if number == leader else (1, A) for number in range(3)]) == (B,)


def test_a_change_is_told_once(asked: Asked) -> None:
    assert asked.after((1, A), (1, A), (1, A)) == asked.believed == (A,)
    assert asked.after((2, B)) == asked.believed == (B,)
    assert asked.told == [(A,), (B,)]


def test_a_sentinel_that_comes_back_with_an_old_epoch_is_not_believed(asked: Asked) -> None:
    assert asked.after(None, (2, B), (2, B)) == (B,)
    assert asked.after((1, A)) == (B,)


def test_nor_when_the_others_have_been_silent_for_long_and_the_master_is_well(asked: Asked) -> None:
    assert asked.after(None, (2, B), (2, B)) == (B,)
    for _ in range(100):
        asked.now += 5.0
        assert asked.after((1, A)) == (B,)
    assert A not in asked.asked


def test_it_is_believed_after_a_minute_in_which_there_is_nothing_else(asked: Asked) -> None:
    assert asked.after(None, (2, B), (2, B)) == (B,)
    asked.masters = {A}
    asked.now += 50.0
    assert asked.after((1, A)) == (B,)
    asked.now += 11.0
    assert asked.believed == (A,)


def test_sentinels_that_begin_anew_are_believed_at_once_where_the_old_master_is_gone(asked: Asked) -> None:
    assert asked.after((7, A), (7, A), (7, A)) == (A,)
    asked.masters = {B}
    assert asked.after((1, B), (1, B)) == (B,)


def test_and_after_some_seconds_where_it_goes_on_answering(asked: Asked) -> None:
    assert asked.after((7, A), (7, A), (7, A)) == (A,)
    assert asked.after((1, B), (1, B), (1, B)) == (A,)
    asked.now += 16.0
    assert asked.after((1, B), (1, B)) == (B,)


def test_epochs_that_begin_anew_with_the_same_master_change_nothing(asked: Asked) -> None:
    assert asked.after((7, A), (7, A), (7, A)) == (A,)
    for _ in range(5):
        asked.now += 5.0
        assert asked.after((0, A), (0, A), (0, A)) == (A,)
    assert asked.after((1, B)) == (B,)
    assert asked.told == [(A,), (B,)]


def test_a_newest_epoch_that_names_no_master_gives_way_to_the_majority(asked: Asked) -> None:
    asked.masters = {A}
    asked.say((9, B), (1, A), (1, A))  # left over from another installation
    assert asked.believed == (A,)
    assert asked.asked == [B]


def test_but_not_to_a_minority(asked: Asked) -> None:
    asked.masters = {A}
    assert asked.after((9, B), (1, A)) == (B,)


def test_a_master_that_is_said_to_be_down_is_not_named_and_its_predecessor_neither(asked: Asked) -> None:
    assert asked.after((2, None), (1, A)) == ()
    assert asked.after(None, (2, B)) == (B,)


def test_a_master_may_go_by_two_names(asked: Asked) -> None:
    asked.say((1, A), (1, A_BY_NAME))
    assert set(asked.believed) == {A, A_BY_NAME}
    assert asked.after(None, None, (1, A_BY_NAME)) == (
        A_BY_NAME,
    )  # so call it most, and all who ask them take the same


def test_one_name_for_many_sentinels_does_not_go_back_and_forth() -> None:
    asked = Asked(sentinels=1)
    assert asked.after((1, A)) == (A,)
    for opinion in ((2, B), (1, A), (2, B), (1, A), (1, A), (2, B)):
        assert asked.after(opinion) == (B,)


def test_an_answer_that_comes_while_a_server_is_asked_counts(asked: Asked) -> None:
    asked.masters = {A}
    asked.say((2, B), (1, A), (1, A))

    def failed_over() -> None:
        asked.say(None, (3, A))
        asked.meanwhile = lambda: None

    asked.meanwhile = failed_over
    assert asked.believed == (A,)
    assert asked.opinions.belief == Belief(3, (A,))


def test_while_all_are_silent_no_master_is_named_and_none_is_left(asked: Asked) -> None:
    assert asked.after((1, A), (1, A), (1, A)) == (A,)
    asked.now += 16.0
    assert asked.believed == ()
    assert asked.told == [(A,)]
    assert asked.after((1, A)) == (A,)


def test_a_sentinel_that_forgets_the_service_has_no_opinion(asked: Asked) -> None:
    asked.say((5, B))
    asked.opinions.give(0, None)
    assert asked.believed == ()


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(asked: Asked) -> None:
    held = threading.Thread(target=asked.opinions._guard.acquire)
    held.start()
    held.join()
    asked.opinions.after_fork_in_child()
    assert asked.after((1, A)) == (A,)
