"""What scripts reply and leave behind that no rule of the simulation sees, on servers of both kinds.

How long a refused caller is to wait, who is woken, whose turn it is, what becomes of keys of another type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lock_types.script_calls import (
    ALONE,
    CHANNEL,
    DAY,
    FENCE,
    INTENT_2,
    LATER_WRITE_1,
    PERMIT_1,
    PERMIT_2,
    PERMIT_3,
    PERMITS,
    READ_1,
    READ_2,
    SHARED,
    TTL,
    WAITER_1,
    WAITER_2,
    WAITING_1,
    WRITE_1,
    WRITE_2,
    Server,
)
from tests.support.backend import LONG_S, Backend
from tests.support.lock_types import NAME
from wheel_lock.errors import LossReason
from wheel_lock.lock_types.fair import FAIR
from wheel_lock.lock_types.replies import count
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Script
from wheel_lock.protocol.server_errors import ServerError

END = b"the end"
TURN_MS = 100  # length of the readers' turn
HOLDER, FIRST, SECOND = b"H" * 44, WAITER_1 + b"1" * 22, WAITER_2 + b"2" * 22
Step = Callable[[Server], Any]


@pytest.fixture
def server(backend: Backend) -> Server:
    return Server(backend)


def heard(backend: Backend, *channels: bytes) -> Any:
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


def set_permits(server: Server, permits: int | str) -> Any:
    return server.call(scripts.SET_PERMITS, [PERMITS], permits, CHANNEL)


def acquire_all(server: Server, *pairs: str) -> Any:
    return server.call(scripts.ACQUIRE_ALL, [], TTL, *pairs)


def reentrant(server: Server, field: bytes, *more: int | str, keys: tuple[str, ...] = (NAME,)) -> Any:
    return server.call(scripts.ACQUIRE_REENTRANT, list(keys), field, TTL, *more)


def two_permits(server: Server) -> None:
    server.permit(PERMIT_1, 5_000)
    server.permit(PERMIT_2, 9_000)


def two_readers(server: Server) -> None:
    server.read(READ_1, 5_000)
    server.read(READ_2, 9_000)


def turn_of_readers(server: Server) -> None:
    """A writer has left, behind which a reader and another writer wait."""
    server.write(WRITE_1)
    server.read(READ_1, wait_ttl=3_000)
    server.write(WRITE_2, wait_ttl=3_000)
    server.release(WRITE_1)
    server.prolong(b"t", 9_000)


def queue_of_two(server: Server) -> None:
    server.fair(HOLDER, 9_000)
    for waiter in (FIRST, SECOND):
        server.fair(waiter, wait_ttl=5_000)


def turn_of_the_first(server: Server) -> None:
    queue_of_two(server)
    server.leave(HOLDER)


def writer_waits(server: Server) -> None:
    server.read(READ_1)
    server.write(WRITE_1, wait_ttl=9_000)


REFUSALS: dict[str, tuple[Step, Step]] = {
    "a writer, until the last of the readers": (two_readers, lambda server: server.write()),
    "a reader": (lambda server: server.write(WRITE_1, 9_000), lambda server: server.read()),
    "another writer": (lambda server: server.write(WRITE_1, 9_000), lambda server: server.write(WRITE_2)),
    "a reader, by a writer that waits": (writer_waits, lambda server: server.read(READ_2)),
    "a writer whose turn it is not": (turn_of_readers, lambda server: server.write(LATER_WRITE_1)),
    "a permit, until the first to expire": (
        lambda server: (server.permit(PERMIT_1, 9_000), server.permit(PERMIT_2, 20_000)),
        lambda server: server.permit(PERMIT_3),
    ),
    "a permit where more are held than there are": (two_permits, lambda server: server.permit(PERMIT_3, permits=1)),
    "a permit where fewer have been set than asked for": (
        lambda server: (set_permits(server, 1), server.permit(PERMIT_1, 9_000, permits=5)),
        lambda server: server.permit(PERMIT_2, permits=5),
    ),
    "a reentrant lock": (lambda server: reentrant(server, b"other:1"), lambda server: reentrant(server, b"mine:1")),
    "the first of a queue": (queue_of_two, lambda server: server.fair(FIRST, wait_ttl=5_000)),
}
"""What is there, and who is to retry in 9 s."""


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_says_when_what_is_in_the_way_will_have_expired(server: Server, case: str) -> None:
    there, call = REFUSALS[case]
    there(server)
    members = server.view.keys()
    [retry_ms] = call(server)
    assert 8_000 < retry_ms <= TTL
    assert server.view.keys() == members, "who does not wait leaves no word"


WAKE_UPS: dict[str, tuple[Step, Step, list[tuple[bytes, bytes]]]] = {
    "a writer": (
        lambda server: server.write(),
        lambda server: server.release(WRITE_1),
        [(SHARED, b"0"), (ALONE, b"0")],
    ),
    "a reader beside another": (two_readers, lambda server: server.release(READ_1), []),
    "the last reader": (two_readers, lambda server: server.release(READ_1, READ_2), [(ALONE, b"0")]),
    "a reader beside one that has expired": (
        lambda server: (two_readers(server), server.expire(READ_1)),
        lambda server: server.release(READ_2),
        [(ALONE, b"0")],
    ),
    "a waiting writer that gives up": (
        writer_waits,
        lambda server: server.release(LATER_WRITE_1),
        [(SHARED, b"0"), (ALONE, b"0")],
    ),
    "a writer that becomes a reader": (
        lambda server: (server.write(WRITE_1), server.write(WRITE_2, wait_ttl=3_000)),
        lambda server: server.swap(WRITE_1, READ_1),
        [(SHARED, b"0")],
    ),
    "the holder before a queue": (queue_of_two, lambda server: server.leave(HOLDER), [(CHANNEL, WAITER_1)]),
    "the second, whose turn it is not": (
        turn_of_the_first,
        lambda server: server.fair(SECOND, wait_ttl=3_000),
        [(CHANNEL, WAITER_1)],
    ),
    "the first, who leaves": (turn_of_the_first, lambda server: server.leave(FIRST), [(CHANNEL, WAITER_2)]),
    "a release": (
        lambda server: server.view.set(NAME, "mine"),
        lambda server: server.call(scripts.RELEASE, [NAME], "mine", CHANNEL),
        [(CHANNEL, b"0")],
    ),
    "a quiet release": (
        lambda server: server.view.set(NAME, "mine"),
        lambda server: server.call(scripts.RELEASE, [NAME], "mine", ""),
        [],
    ),
    "a release of reentrant locks": (
        lambda server: reentrant(server, b"mine:1"),
        lambda server: server.call(scripts.RELEASE_REENTRANT_MANY, [], NAME, b"mine:1", CHANNEL),
        [(CHANNEL, b"0")],
    ),
    "a quiet release of a reentrant lock": (
        lambda server: reentrant(server, b"mine:1"),
        lambda server: server.call(scripts.RELEASE_REENTRANT, [NAME], b"mine:1", ""),
        [],
    ),
}
"""What is there, what is called, and who hears of it."""


@pytest.mark.parametrize("case", WAKE_UPS)
def test_those_are_woken_who_may_have_it_now(backend: Backend, server: Server, case: str) -> None:
    there, call, expected = WAKE_UPS[case]
    there(server)
    subscription = heard(backend, SHARED, ALONE, CHANNEL)
    call(server)
    assert sorted(messages(subscription)) == sorted(expected)


def test_a_wrong_type_under_the_name_is_a_refusal(server: Server) -> None:
    server.view.rpush(NAME, "something else")
    assert server.call(scripts.ADOPT, [NAME], HOLDER, FIRST, TTL) == -1
    assert server.call(scripts.RELEASE, [NAME], HOLDER, CHANNEL) == -1
    server.view.delete(NAME)
    server.view.set(NAME, "something else", px=5_000)
    for refusal in (server.read(wait_ttl=100), server.write(wait_ttl=100), server.write(fenced=True), server.permit()):
        [retry_ms, found] = refusal
        assert found == b"string"
        assert 4_000 < retry_ms <= 5_000
    assert server.fair(FIRST) == [-1]
    assert server.view.get(NAME) == b"something else"
    assert server.swap(WRITE_1, READ_1) == -1
    assert server.extend(READ_1, 1_000) == -1


def test_a_writer_that_leaves_passes_the_turn_to_readers_that_wait(server: Server) -> None:
    server.write(WRITE_1)
    assert isinstance(server.read(READ_1, wait_ttl=3_000), list)
    assert server.members() == {WRITE_1, WAITING_1}
    assert 2_000 < server.left_ms(WAITING_1) <= 3_000
    assert isinstance(server.write(WRITE_2, wait_ttl=3_000), list)
    server.release(WRITE_1)
    assert server.members() == {b"t", INTENT_2, WAITING_1}
    assert 0 < server.left_ms(b"t") <= TURN_MS
    server.prolong(b"t", 3_000)
    [retry_ms] = server.write(LATER_WRITE_1)
    assert 0 < retry_ms <= 3_000, "it is not the writers' turn"
    assert server.read(READ_1) == 0, "though a writer waits"
    assert server.members() == {b"t", INTENT_2, READ_1}, "and it is no longer marked as waiting"
    assert server.read(READ_2) == 0
    server.release(READ_1)
    assert b"t" in server.members()
    server.release(READ_2)
    assert server.members() == {INTENT_2}, "the last of them ends the turn"
    assert server.write(WRITE_2) == 0


def hold_string(server: Server, name: str, member: bytes) -> None:
    server.view.set(name, member, px=1_000)


def hold_field(server: Server, name: str, member: bytes) -> None:
    reentrant(server, member, keys=(name,))
    server.view.pexpire(name, 1_000)


def hold_member(server: Server, name: str, member: bytes) -> None:
    server.call(scripts.ACQUIRE_READ, [name], member, 1_000, 0)


Hold = Callable[[Server, str, bytes], None]
BATCHES: dict[Script, tuple[Hold, bytes, bytes, list[bytes], int]] = {
    scripts.RENEW: (hold_string, FIRST, SECOND, [], 1),
    scripts.RELEASE_MANY: (hold_string, FIRST, SECOND, [CHANNEL], 1),
    scripts.RELEASE_FAIR: (hold_string, FIRST, SECOND, [b"queue", b"alive", CHANNEL], 1),
    scripts.RENEW_REENTRANT: (hold_field, b"mine:1", b"other:1", [], 1),
    scripts.RELEASE_REENTRANT_MANY: (hold_field, b"mine:1", b"other:1", [CHANNEL], 1),
    scripts.RENEW_HOLDERS: (hold_member, READ_1, READ_2, [], 0),
    scripts.RELEASE_HOLDERS: (hold_member, READ_1, READ_2, [SHARED, ALONE], 0),
}
"""How a key is held, two holders, what follows a holder in the arguments, and what is said of a key that another holds."""


@pytest.mark.parametrize("script", BATCHES, ids=lambda script: str(script.name))
def test_a_batch_reports_its_exceptions_only(server: Server, script: Script) -> None:
    hold, mine, other, more, taken = BATCHES[script]
    hold(server, "well", mine)
    hold(server, "also well", mine)
    hold(server, "taken", other)
    server.view.rpush("wrong", "something else")
    renews = script.name.startswith("renew")
    arguments: list[str | bytes | int] = [TTL] if renews else []
    for name in ("wrong", "well", "nothing", "taken", "also well"):
        arguments += [name, mine, *more]
    reply = server.call(script, [], *arguments)
    exceptions = dict(zip(reply[::2], reply[1::2], strict=True))
    assert exceptions.pop(1).startswith(b"WRONGTYPE")
    assert exceptions == {3: 0, 4: taken}
    for name in ("well", "also well"):
        assert 9_000 < server.view.pttl(name) <= TTL if renews else not server.view.exists(name)
    assert server.view.exists("taken", "wrong") == 2
    assert not server.view.exists("nothing")
    if renews:
        assert server.call(script, [], TTL, "well", mine) == []


def test_an_error_in_a_batch_is_no_loss_unless_another_type_has_the_key() -> None:
    assert isinstance(FAIR.parse_release([1, b"OOM command not allowed"]), ServerError)
    assert FAIR.parse_release([1, b"WRONGTYPE it is a list"]) is LossReason.TAKEN


@pytest.mark.parametrize("reply", [b"1", None, [1]])
def test_what_is_no_integer_is_no_count(reply: Reply) -> None:
    with pytest.raises(MalformedReply):
        count(reply)


def test_a_quorum_writes_its_fence_only_where_its_token_is_and_never_a_smaller_one(server: Server) -> None:
    def acquire(*floor: int) -> Any:
        return server.call(scripts.ACQUIRE_FENCED, [NAME, FENCE], HOLDER, TTL, DAY, 1, *floor)

    def write(token: bytes, fence: int) -> Any:
        return server.call(scripts.WRITE_FENCE, [NAME, FENCE], token, fence, DAY)

    assert write(HOLDER, 5) == 0
    drawn = acquire()
    assert write(FIRST, drawn + 9) == -1
    assert [write(HOLDER, drawn + more) for more in (5, 5, 4)] == [1, 1, -2]
    assert (server.view.get(FENCE), server.view.pttl(FENCE) > DAY - LONG_S * 1000) == (b"%d" % (drawn + 5), True)
    assert acquire(drawn + 4) == drawn + 5  # an acquire that is repeated
    assert acquire(drawn + 7) == drawn + 7
    server.view.set(FENCE, "no fence")
    with pytest.raises(redis.ResponseError, match="holds no fence"):
        write(HOLDER, drawn + 9)
    server.view.delete(NAME)
    server.view.rpush(NAME, "something else")
    assert write(HOLDER, drawn + 9) == -1


def test_all_of_several_are_taken_or_none_and_the_first_obstacle_is_reported(server: Server) -> None:
    server.view.set("b", "another", px=5_000)
    server.view.rpush("c", "something else")
    [index, retry_ms] = acquire_all(server, "a", "mine", "b", "mine", "c", "mine")
    assert index == 2
    assert 4_000 < retry_ms <= 5_000
    assert acquire_all(server, "a", "mine", "c", "mine") == [2, -1, b"list"]
    assert sorted(server.view.keys()) == [b"b", b"c"]
    assert acquire_all(server, "a", "mine", "d", "mine") == 0
    assert acquire_all(server, "a", "mine", "d", "mine") == 0, "a retry"
    assert acquire_all(server, "d", "another", "e", "another")[0] == 1
    assert not server.view.exists("e")
