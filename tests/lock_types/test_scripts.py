"""The scripts of the family, those of the sorted-set kinds above all, called as they are on servers of both kinds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lock_types.script_calls import (
    ALIVE,
    ALONE,
    CHANNEL,
    DAY,
    FENCE,
    INTENT_1,
    INTENT_2,
    LATER_WRITE_1,
    PERMIT_1,
    PERMIT_2,
    PERMIT_3,
    PERMITS,
    QUEUE,
    READ_1,
    READ_2,
    SHARED,
    TTL,
    WAITER_1,
    WAITER_2,
    WAITING_1,
    WAITING_2,
    WRITE_1,
    WRITE_2,
    Server,
)
from tests.support.backend import LONG_S, Backend
from tests.support.lock_types import NAME
from tests.support.waiting import eventually
from wheel_lock.options import MAX_TTL_MS
from wheel_lock.protocol import scripts
from wheel_lock.protocol.scripts import Script

END = b"the end"
TURN = 100  # ms for which the turn is the readers'


@pytest.fixture
def server(backend: Backend) -> Server:
    return Server(backend)


def heard(backend: Backend, *channels: bytes) -> Any:
    """A subscription to channels."""
    subscription = backend.view.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(*channels)
    for _ in channels:
        subscription.get_message(timeout=LONG_S)
    return subscription


def messages(subscription: Any) -> list[tuple[bytes, bytes]]:
    """What has been published on them."""
    found: list[tuple[bytes, bytes]] = []
    channel = next(iter(subscription.channels))
    redis.Redis(connection_pool=subscription.connection_pool).publish(channel, END)  # which comes behind all of them
    while (message := subscription.get_message(timeout=LONG_S))["data"] != END:
        found.append((message["channel"], message["data"]))
    subscription.close()
    return found


# Who is let in


def test_a_member_is_its_holders_and_its_score_his_expiry(server: Server) -> None:
    assert server.read(READ_1, 5_000) == 0
    assert server.read(READ_2, 9_000) == 0
    assert server.members() == {READ_1, READ_2}
    assert 4_000 < server.left_ms(READ_1) <= 5_000
    assert 8_000 < server.left_ms(READ_2) <= 9_000
    assert 8_000 < server.view.pttl(NAME) <= 9_000
    assert server.look() == [2, 0, 0, -1]


def test_a_writers_score_is_negative(server: Server) -> None:
    assert server.write() == 0
    score = server.view.zscore(NAME, WRITE_1)
    assert score is not None
    assert score < 0
    assert 9_000 < server.left_ms(WRITE_1) <= TTL
    assert server.look(WRITE_1) == [0, 1, 1, -1]


def test_a_refusal_says_when_what_is_in_the_way_will_have_expired(server: Server) -> None:
    server.read(READ_1, 5_000)
    server.read(READ_2, 9_000)
    [retry_ms] = server.write()
    assert 8_000 < retry_ms <= 9_000, "the last of the readers"
    server.release(READ_1, READ_2)
    server.write(WRITE_1, 7_000)
    for refusal in (server.read(), server.write(WRITE_2)):
        [retry_ms] = refusal
        assert 6_000 < retry_ms <= 7_000
    assert server.members() == {WRITE_1}, "who does not wait leaves no word"


@pytest.mark.parametrize("expired", [READ_1, WRITE_1], ids=["reader", "writer"])
def test_who_has_expired_is_in_nobodys_way_and_is_thrown_out(server: Server, expired: bytes) -> None:
    server.write(WRITE_1) if expired is WRITE_1 else server.read(READ_1)
    server.view.pexpire(NAME, 60_000)
    server.expire(expired)
    assert server.look(expired) == [0, 0, 0, -1]
    assert server.write(WRITE_2) == 0
    assert server.members() == {WRITE_2}


def test_each_acquire_throws_out_what_has_expired(server: Server) -> None:
    server.permit(PERMIT_1)
    server.permit(PERMIT_2)
    assert isinstance(server.permit(PERMIT_3), list)
    server.expire(PERMIT_1)
    assert server.permit(PERMIT_3) == 0
    assert server.members() == {PERMIT_2, PERMIT_3}
    server.release(PERMIT_2, PERMIT_3)
    server.write(WRITE_1)
    server.expire(WRITE_1)
    assert server.read() == 0
    assert server.members() == {READ_1}


def test_a_retried_acquire_recognises_its_own_member(server: Server) -> None:
    assert server.read(READ_1, 5_000) == 0
    assert server.read(READ_1, 9_000) == 0
    assert server.left_ms(READ_1) > 8_000
    server.release(READ_1)
    assert server.write(WRITE_1, 5_000) == 0
    assert server.write(WRITE_1, 9_000) == 0
    assert server.left_ms(WRITE_1) > 8_000
    assert isinstance(server.write(LATER_WRITE_1), list), "another try's member is not its own"
    server.release(WRITE_1)
    assert server.permit(PERMIT_1, permits=1) == 0
    assert server.permit(PERMIT_1, permits=1) == 0
    assert server.members() == {PERMIT_1}


def test_a_reader_that_is_there_already_is_recognised_though_a_writer_waits(server: Server) -> None:
    server.read(READ_1)
    server.write(WRITE_1, patience=5_000)
    assert isinstance(server.read(READ_2), list)
    assert server.read(READ_1) == 0


def test_a_wrong_type_under_the_name_is_a_refusal(server: Server) -> None:
    server.view.set(NAME, "something else", px=5_000)
    for refusal in (server.read(patience=100), server.write(patience=100), server.write(fenced=True), server.permit()):
        [retry_ms, found] = refusal
        assert found == b"string"
        assert 4_000 < retry_ms <= 5_000
    assert server.fair(WAITER_1 + b"1" * 22) == [-1]
    assert server.view.get(NAME) == b"something else"
    assert server.swap(WRITE_1, READ_1) == -1
    assert server.extend(READ_1, 1_000) == -1


# Permits


def test_the_number_that_was_set_goes_before_the_callers_own(server: Server) -> None:
    assert server.call(scripts.SET_PERMITS, [PERMITS], 1, CHANNEL) == 1
    assert server.permit(PERMIT_1, permits=5) == 0
    [retry_ms] = server.permit(PERMIT_2, 20_000, permits=5)
    assert 9_000 < retry_ms <= TTL, "the first to expire makes room"
    assert server.look() == [1, 0, 0, 1]
    server.call(scripts.SET_PERMITS, [PERMITS], "", CHANNEL)
    assert server.permit(PERMIT_2, permits=5) == 0
    assert server.look() == [2, 0, 0, -1]


def test_where_more_are_held_than_there_are_as_many_expiries_make_room(server: Server) -> None:
    server.permit(PERMIT_1)
    server.permit(PERMIT_2, 20_000)
    [retry_ms] = server.permit(PERMIT_3, permits=1)
    assert 19_000 < retry_ms <= 20_000


@pytest.mark.parametrize("value", ["plenty", "nan"])
def test_a_permits_key_without_a_number_is_an_error(server: Server, value: str) -> None:
    server.view.set(PERMITS, value)
    with pytest.raises(redis.ResponseError, match="holds no number"):
        server.permit()
    with pytest.raises(redis.ResponseError, match="holds no number"):
        server.call(scripts.LOOK_HOLDERS, [NAME, PERMITS], b"")
    assert server.members() == set()


def test_readers_or_a_writer_under_the_name_keep_permits_out_or_are_counted(server: Server) -> None:
    server.write(WRITE_1)
    assert server.permit() == [-1]
    assert server.members() == {WRITE_1}


# Turns


def test_a_writer_that_waits_leaves_word_that_holds_back_new_readers(server: Server) -> None:
    server.read(READ_1)
    [retry_ms] = server.write(WRITE_1, patience=3_000)
    assert retry_ms > 9_000
    assert server.members() == {READ_1, INTENT_1}
    assert 2_000 < server.left_ms(INTENT_1) <= 3_000
    [retry_ms] = server.read(READ_2)
    assert 2_000 < retry_ms <= 3_000
    assert server.look() == [1, 0, 0, -1], "word is no holder"


def test_each_try_of_a_waiting_writer_renews_its_word_under_one_name(server: Server) -> None:
    server.read(READ_1)
    server.write(WRITE_1, patience=1_000)
    server.write(LATER_WRITE_1, patience=4_000)
    server.write(WRITE_2, patience=2_000)
    assert server.members() == {READ_1, INTENT_1, INTENT_2}
    assert 3_000 < server.left_ms(INTENT_1) <= 4_000


def test_a_writers_word_goes_with_its_grant(server: Server) -> None:
    server.read(READ_1)
    server.write(WRITE_1, patience=3_000)
    server.write(WRITE_2, patience=3_000)
    server.release(READ_1)
    assert server.write(LATER_WRITE_1, patience=3_000) == 0
    assert server.members() == {LATER_WRITE_1, INTENT_2}


def test_a_writers_word_goes_when_it_gives_up_and_those_it_held_back_are_woken(
    backend: Backend, server: Server
) -> None:
    server.read(READ_1)
    server.write(WRITE_1, patience=3_000)
    subscription = heard(backend, SHARED, ALONE)
    assert server.release(LATER_WRITE_1) == [1, 0]
    assert server.members() == {READ_1}
    assert sorted(messages(subscription)) == [(SHARED, b"0"), (ALONE, b"0")]
    assert server.read(READ_2) == 0


def test_a_writers_word_expires_and_is_thrown_out(server: Server) -> None:
    server.read(READ_1)
    server.write(WRITE_1, patience=3_000)
    server.expire(INTENT_1)
    assert server.read(READ_2) == 0
    assert server.members() == {READ_1, READ_2}


def test_a_writer_that_leaves_passes_the_turn_to_readers_that_wait(server: Server) -> None:
    server.write(WRITE_1)
    assert isinstance(server.read(READ_1, patience=3_000), list)
    assert server.members() == {WRITE_1, WAITING_1}
    assert 2_000 < server.left_ms(WAITING_1) <= 3_000
    assert isinstance(server.write(WRITE_2, patience=3_000), list)
    before = server.now
    server.release(WRITE_1)
    after = server.now
    assert server.members() == {b"t", INTENT_2, WAITING_1}
    expiry = -(server.view.zscore(NAME, b"t") or 0)
    assert before <= expiry - TURN <= after
    server.prolong(b"t", 3_000)
    [retry_ms] = server.write(LATER_WRITE_1)
    assert 0 < retry_ms <= 3_000, "it is not the writers' turn"
    assert server.read(READ_1) == 0, "though a writer waits"
    assert server.members() == {b"t", INTENT_2, READ_1}, "and it is not said to wait any more"
    assert server.read(READ_2) == 0
    server.release(READ_1)
    assert b"t" in server.members()
    server.release(READ_2)
    assert server.members() == {INTENT_2}, "the last of them ends the turn"
    assert server.write(WRITE_2) == 0


def test_the_turn_of_readers_who_do_not_come_ends_by_itself(server: Server) -> None:
    server.write(WRITE_1)
    server.read(READ_1, patience=3_000)
    server.release(WRITE_1)
    eventually(lambda: server.write(WRITE_2) == 0, 1.0)
    assert server.members() == {WRITE_2, WAITING_1}
    server.release(READ_1)
    assert server.members() == {WRITE_2}


def test_a_turn_outlasts_a_reader_that_is_quicker_than_the_others(server: Server) -> None:
    server.write(WRITE_1)
    for reader in (READ_1, READ_2):
        server.read(reader, patience=3_000)
    server.release(WRITE_1)
    server.prolong(b"t", 3_000)
    assert server.read(READ_1) == 0
    server.release(READ_1)
    assert server.members() == {b"t", WAITING_2}
    assert isinstance(server.write(WRITE_2), list)
    assert server.read(READ_2) == 0
    server.release(READ_2)
    assert not server.view.exists(NAME)


def test_a_reader_that_gives_up_is_not_waited_for(server: Server) -> None:
    server.write(WRITE_1)
    server.read(READ_1, patience=3_000)
    assert server.release(READ_1) == [1, 0]
    assert server.members() == {WRITE_1}
    server.release(WRITE_1)
    assert server.write(WRITE_2) == 0


def test_a_writer_that_leaves_nobody_waiting_leaves_nothing(backend: Backend, server: Server) -> None:
    server.write(WRITE_1)
    subscription = heard(backend, SHARED, ALONE)
    assert server.release(WRITE_1) == []
    assert not server.view.exists(NAME)
    assert sorted(messages(subscription)) == [(SHARED, b"0"), (ALONE, b"0")]


def test_only_the_last_reader_wakes_writers(backend: Backend, server: Server) -> None:
    server.read(READ_1)
    server.read(READ_2)
    subscription = heard(backend, SHARED, ALONE)
    server.release(READ_1)
    server.view.publish(SHARED, "after the first")
    server.release(READ_2)
    assert messages(subscription) == [(SHARED, b"after the first"), (ALONE, b"0")]


def test_a_reader_that_leaves_behind_one_that_has_expired_wakes_writers(backend: Backend, server: Server) -> None:
    server.read(READ_1)
    server.read(READ_2)
    server.expire(READ_1)
    subscription = heard(backend, SHARED, ALONE)
    server.release(READ_2)
    assert messages(subscription) == [(ALONE, b"0")]


# Releases


def test_a_release_of_what_is_not_there_or_has_expired_says_so_and_goes_on(server: Server) -> None:
    server.read(READ_1)
    server.read(READ_2)
    server.expire(READ_2)
    assert server.release(b"r:nobody", READ_1, READ_2) == [1, 0, 3, 0]
    assert not server.view.exists(NAME)
    assert server.release(READ_1) == [1, 0]


def test_a_wrong_type_breaks_nothing_else_of_a_batch_of_releases(server: Server) -> None:
    server.read(READ_1)
    server.view.set("wrong", "something else")
    arguments: list[str | bytes] = ["wrong", READ_2, SHARED, ALONE, NAME, READ_1, SHARED, ALONE]
    [index, error] = server.call(scripts.RELEASE_HOLDERS, [], *arguments)
    assert index == 1
    assert error.startswith(b"WRONGTYPE")
    assert not server.view.exists(NAME)
    assert server.view.get("wrong") == b"something else"


# Renewals and extensions


def test_a_batch_of_renewals_tells_of_its_exceptions_only(server: Server) -> None:
    for name in ("well", "also well"):
        server.call(scripts.ACQUIRE_READ, [name], READ_1, 1_000, 0)
    server.call(scripts.ACQUIRE_WRITE, ["written"], WRITE_1, 1_000, 0, DAY)
    server.read(READ_1, 1_000)
    server.read(READ_2, 5_000)
    server.expire(READ_1)
    server.view.set("wrong", "something else")
    entries = [
        ("well", READ_1),
        (NAME, READ_1),  # its time has come
        ("wrong", READ_1),
        (NAME, READ_2),
        ("nothing", READ_1),
        ("well", READ_2),  # somebody else
        ("written", WRITE_1),
        ("also well", READ_1),
    ]
    reply = server.renew(*entries)
    verdicts = dict(zip(reply[::2], reply[1::2], strict=True))
    assert verdicts.pop(3).startswith(b"WRONGTYPE")
    assert verdicts == {2: 0, 5: 0, 6: 0}
    for name, member in (("well", READ_1), ("written", WRITE_1), ("also well", READ_1)):
        score = server.view.zscore(name, member)
        assert score is not None
        assert 9_000 < abs(score) - server.now <= TTL
        assert (score < 0) is (member is WRITE_1)
        assert 9_000 < server.view.pttl(name) <= TTL
    assert server.left_ms(READ_1) < 0, "one whose time has come is not brought back"
    assert server.left_ms(READ_2) > 9_000
    assert not server.view.exists("nothing")


def test_a_renewal_that_meets_nothing_odd_has_an_empty_reply(server: Server) -> None:
    server.read(READ_1)
    assert server.renew((NAME, READ_1)) == []


def test_the_key_lives_as_long_as_the_last_of_its_members(server: Server) -> None:
    server.read(READ_1, 30_000)
    server.read(READ_2, 1_000)
    assert server.view.pttl(NAME) > 29_000
    server.renew((NAME, READ_2), ttl=2_000)
    assert server.view.pttl(NAME) > 29_000
    assert server.extend(READ_2, 1_000) <= 3_000
    assert server.view.pttl(NAME) > 29_000
    assert server.extend(READ_2, 60_000, replace=True) == 60_000
    assert 59_000 < server.view.pttl(NAME) <= 60_000
    server.permit(PERMIT_1, 1_000, permits=9)
    assert server.view.pttl(NAME) > 59_000


def test_an_extension_adds_or_replaces_and_keeps_the_sign(server: Server) -> None:
    server.write(WRITE_1, 5_000)
    assert 9_000 < server.extend(WRITE_1, 5_000) <= 10_000
    assert 9_000 < server.left_ms(WRITE_1) <= 10_000
    assert server.look(WRITE_1) == [0, 1, 1, -1]
    assert server.extend(WRITE_1, 2_000, replace=True) == 2_000
    assert server.left_ms(WRITE_1) <= 2_000
    score = server.view.zscore(NAME, WRITE_1)
    assert score is not None
    assert score < 0


def test_what_has_expired_or_is_not_there_is_not_extended(server: Server) -> None:
    assert server.extend(READ_1, 1_000) == 0
    server.read(READ_1)
    assert server.extend(READ_2, 1_000) == 0
    server.expire(READ_1)
    assert server.extend(READ_1, 1_000) == 0
    assert server.left_ms(READ_1) < 0


# Swaps


def test_a_swap_leaves_no_gap_and_no_writer(backend: Backend, server: Server) -> None:
    server.write(WRITE_1)
    server.write(WRITE_2, patience=3_000)
    subscription = heard(backend, SHARED, ALONE)
    assert server.swap(WRITE_1, READ_1, 5_000) == 1
    assert server.members() == {READ_1, INTENT_2}
    assert 4_000 < server.left_ms(READ_1) <= 5_000
    assert isinstance(server.write(WRITE_2), list)
    assert messages(subscription) == [(SHARED, b"0")]


def test_a_swap_passes_the_turn_on(server: Server) -> None:
    server.write(WRITE_1)
    server.read(READ_2, patience=3_000)
    server.write(WRITE_2, patience=3_000)
    server.swap(WRITE_1, READ_1)
    assert server.members() == {READ_1, INTENT_2, WAITING_2, b"t"}
    server.prolong(b"t", 3_000)
    assert server.read(READ_2) == 0


def test_a_swap_that_is_sent_twice_is_done_once(server: Server) -> None:
    server.write(WRITE_1)
    assert server.swap(WRITE_1, READ_1, 5_000) == 1
    assert server.swap(WRITE_1, READ_1, 9_000) == 1
    assert server.members() == {READ_1}
    assert server.left_ms(READ_1) > 8_000


def test_a_swap_of_what_is_not_held_any_more_puts_nothing_there(server: Server) -> None:
    assert server.swap(WRITE_1, READ_1) == 0
    server.write(WRITE_1)
    server.expire(WRITE_1)
    assert server.swap(WRITE_1, READ_1) == 0
    assert READ_1 not in server.members()
    assert server.write(WRITE_2) == 0
    assert server.swap(WRITE_1, READ_1) == 0
    assert server.members() == {WRITE_2}


# Fences


@pytest.mark.parametrize("kind", ["write", "fair", "reentrant"])
def test_fences_grow_and_outlive_their_key(server: Server, kind: str) -> None:
    def grant(number: int) -> int:
        digit = b"%d" % number
        if kind == "write":
            member = b"w:" + digit * 44
            fence = server.write(member, fenced=True)
            server.release(member)
        elif kind == "fair":
            fence = server.fair(digit * 44, fenced=True)
            server.leave(digit * 44)
        else:
            fence = server.call(scripts.ACQUIRE_REENTRANT, [NAME, FENCE], digit * 22, TTL, DAY)
            server.call(scripts.RELEASE_REENTRANT, [NAME], digit * 22, CHANNEL)
        assert isinstance(fence, int)
        return fence

    fences = [grant(1), grant(2)]
    assert 0 < server.view.pttl(FENCE) <= DAY
    server.view.flushall()
    fences.append(grant(3))
    far = fences[-1] + 10**9
    server.view.set(FENCE, far)
    fences.append(grant(4))
    assert fences[-1] == far + 1
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("value", ["something else", "nan"])
@pytest.mark.parametrize("kind", ["write", "fair", "reentrant"])
def test_a_fence_key_of_no_use_means_no_grant(server: Server, kind: str, value: str) -> None:
    server.view.set(FENCE, value)
    acquire: dict[str, Callable[[], object]] = {
        "write": lambda: server.write(fenced=True),
        "fair": lambda: server.fair(b"1" * 44, fenced=True),
        "reentrant": lambda: server.call(scripts.ACQUIRE_REENTRANT, [NAME, FENCE], b"1" * 22, TTL, DAY),
    }
    with pytest.raises(redis.ResponseError, match="fence key"):
        acquire[kind]()
    assert not server.view.exists(NAME)


# The queue of a fair lock


def test_who_waits_takes_a_ticket_and_keeps_it(server: Server) -> None:
    first, second = WAITER_1 + b"1" * 22, WAITER_2 + b"2" * 22
    assert server.fair(b"H" * 44, 5_000) == 0
    [retry_ms] = server.fair(first, patience=2_000)
    assert 4_000 < retry_ms <= 5_000, "the first is told how long the holder has"
    assert server.fair(second, patience=2_000) == [-1]
    server.fair(WAITER_1 + b"9" * 22, patience=3_000)
    assert server.view.zrange(QUEUE, 0, -1) == [WAITER_1, WAITER_2]
    assert 2_000 < (server.view.zscore(ALIVE, WAITER_1) or 0) - server.now <= 3_000
    assert 2_000 < server.view.pttl(QUEUE) <= 3_000
    assert 2_000 < server.view.pttl(ALIVE) <= 3_000
    assert server.fair(b"N" * 44) == [-1]
    assert server.view.zcard(QUEUE) == 2, "who does not wait takes none"


def test_a_release_calls_the_first_and_only_he_is_let_in(backend: Backend, server: Server) -> None:
    server.fair(b"H" * 44)
    for waiter in (WAITER_1, WAITER_2):
        server.fair(waiter + b"1" * 22, patience=3_000)
    subscription = heard(backend, CHANNEL)
    assert server.leave(b"H" * 44) == []
    [retry_ms] = server.fair(WAITER_2 + b"2" * 22, patience=3_000)
    assert 2_000 < retry_ms <= 3_000, "until the first will have been forgotten"
    assert messages(subscription) == [(CHANNEL, WAITER_1), (CHANNEL, WAITER_1)]
    assert server.fair(WAITER_1 + b"2" * 22) == 0
    assert server.view.zrange(QUEUE, 0, -1) == [WAITER_2]
    assert server.view.zrange(ALIVE, 0, -1) == [WAITER_2]


def test_who_was_not_heard_of_is_skipped_and_comes_back_at_the_end(server: Server) -> None:
    server.fair(b"H" * 44)
    for waiter in (WAITER_1, WAITER_2):
        server.fair(waiter + b"1" * 22, patience=3_000)
    server.view.zadd(ALIVE, {WAITER_1: server.now - 1})
    server.leave(b"H" * 44)
    assert server.fair(WAITER_2 + b"2" * 22, patience=3_000) == 0
    server.fair(b"C" * 44, patience=3_000)
    server.fair(WAITER_1 + b"2" * 22, patience=3_000)
    assert server.view.zrange(QUEUE, 0, -1) == [b"C" * 22, WAITER_1]


def test_who_leaves_the_queue_calls_the_next_where_it_was_his_turn(backend: Backend, server: Server) -> None:
    server.fair(b"H" * 44)
    for waiter in (WAITER_1, WAITER_2):
        server.fair(waiter + b"1" * 22, patience=3_000)
    server.leave(b"H" * 44)
    subscription = heard(backend, CHANNEL)
    assert server.leave(WAITER_1 + b"7" * 22) == [1, 0]
    assert server.view.zrange(QUEUE, 0, -1) == [WAITER_2]
    assert messages(subscription) == [(CHANNEL, WAITER_2)]


def test_a_grant_whose_reply_was_lost_is_recognised(server: Server) -> None:
    token = WAITER_1 + b"1" * 22
    assert server.fair(token, 5_000) == 0
    server.fair(WAITER_2 + b"2" * 22, patience=3_000)
    assert server.fair(token, 9_000) == 0
    assert server.view.pttl(NAME) > 8_000
    assert server.view.zrange(QUEUE, 0, -1) == [WAITER_2]


def test_a_batch_of_releases_of_fair_locks_tells_of_its_exceptions_only(server: Server) -> None:
    mine, others = WAITER_1 + b"1" * 22, WAITER_2 + b"2" * 22
    server.fair(mine)
    server.view.rpush("wrong", "something else")
    server.view.set("taken", others)
    names = ["wrong", "nothing", NAME, "taken"]
    arguments = [part for name in names for part in (name, mine, f"q:{name}", f"a:{name}", CHANNEL)]
    reply = server.call(scripts.RELEASE_FAIR, [], *arguments)
    verdicts = dict(zip(reply[::2], reply[1::2], strict=True))
    assert verdicts.pop(1).startswith(b"WRONGTYPE")
    assert verdicts == {2: 0, 4: 1}
    assert sorted(server.view.keys()) == [b"taken", b"wrong"]


# Reentrant, and several at once


def test_a_reentrant_field_is_its_holders_alone(server: Server) -> None:
    def acquire(field: bytes) -> Any:
        return server.call(scripts.ACQUIRE_REENTRANT, [NAME], field, TTL)

    assert acquire(b"mine:1") == 0
    assert acquire(b"mine:1") == 0, "a retry"
    [retry_ms] = acquire(b"other:1")
    assert 9_000 < retry_ms <= TTL
    assert server.view.hgetall(NAME) == {b"mine:1": b"1"}
    assert server.call(scripts.EXTEND_REENTRANT, [NAME], b"other:1", 1_000, 0, MAX_TTL_MS) == -1
    assert server.call(scripts.RELEASE_REENTRANT, [NAME], b"other:1", CHANNEL) == -1
    assert server.call(scripts.EXTEND_REENTRANT, [NAME], b"mine:1", 1_000, 1, MAX_TTL_MS) == 1_000
    assert server.call(scripts.RELEASE_REENTRANT, [NAME], b"mine:1", CHANNEL) >= 1
    assert server.call(scripts.RELEASE_REENTRANT, [NAME], b"mine:1", CHANNEL) == 0
    assert server.call(scripts.EXTEND_REENTRANT, [NAME], b"mine:1", 1_000, 1, MAX_TTL_MS) == 0


@pytest.mark.parametrize("script", [scripts.RENEW_REENTRANT, scripts.RELEASE_REENTRANT_MANY])
def test_a_batch_about_reentrant_locks_tells_of_its_exceptions_only(server: Server, script: Script) -> None:
    for name in ("well", "also well"):
        server.call(scripts.ACQUIRE_REENTRANT, [name], b"mine:1", 1_000)
    server.call(scripts.ACQUIRE_REENTRANT, ["taken"], b"other:1", 1_000)
    server.view.set("wrong", "something else")
    names = ["wrong", "well", "nothing", "taken", "also well"]
    if script is scripts.RENEW_REENTRANT:
        reply = server.call(script, [], TTL, *[part for name in names for part in (name, b"mine:1")])
    else:
        reply = server.call(script, [], *[part for name in names for part in (name, b"mine:1", CHANNEL)])
    verdicts = dict(zip(reply[::2], reply[1::2], strict=True))
    assert verdicts.pop(1).startswith(b"WRONGTYPE")
    assert verdicts == {3: 0, 4: 1}
    for name in ("well", "also well"):
        if script is scripts.RENEW_REENTRANT:
            assert 9_000 < server.view.pttl(name) <= TTL
        else:
            assert not server.view.exists(name)
    assert server.view.hgetall("taken") == {b"other:1": b"1"}


def test_all_of_several_are_taken_or_none_and_the_first_in_the_way_is_told(server: Server) -> None:
    def acquire(*pairs: str) -> Any:
        return server.call(scripts.ACQUIRE_ALL, [], TTL, *pairs)

    server.view.set("b", "somebody", px=5_000)
    server.view.rpush("c", "something else")
    [index, retry_ms] = acquire("a", "mine", "b", "mine", "c", "mine")
    assert index == 2
    assert 4_000 < retry_ms <= 5_000
    assert acquire("a", "mine", "c", "mine") == [2, -1, b"list"]
    assert sorted(server.view.keys()) == [b"b", b"c"]
    assert acquire("a", "mine", "d", "mine") == 0
    assert acquire("a", "mine", "d", "mine") == 0, "a retry"
    assert acquire("d", "another", "e", "another")[0] == 1
    assert not server.view.exists("e")


def test_the_clock_of_the_scores_is_the_servers(server: Server) -> None:
    server.read(READ_1, TTL)
    score = server.view.zscore(NAME, READ_1)
    assert score is not None
    assert abs(score - TTL - time.time() * 1000) < 5_000
    assert score == int(score)
