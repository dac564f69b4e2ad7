"""Redis as the resource: what an overtaken holder sends is refused by the script that would write it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.crc
from hypothesis import given
from hypothesis import strategies as st

from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import StaleFence, guards
from wheel_lock.guards.redis import AsyncGuarded, Guarded
from wheel_lock.protocol.keys import guard_key
from wheel_lock.testing import fake_context

NAME = "account:42"


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def client(request: pytest.FixtureRequest, redis_server: RedisServer) -> redis.Redis:
    return redis_server.client(decode_responses=request.param)


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_each_command_is_done_for_the_newest_holder_and_refused_to_others(client: redis.Redis) -> None:
    late, newest = Guarded(client, (NAME, 1_800_000_000_000_000)), Guarded(client, (NAME, 1_800_000_000_000_001))
    for held in (late, late, newest, newest):
        assert held.set("{42}:balance", 100)
        held.hset("{42}:owner", {"name": "Ada", b"born": 1815})
        held.xadd("{42}:history", {"paid": 1})
    with pytest.raises(StaleFence) as raised:
        late.set("{42}:balance", -1)
    error = raised.value
    assert (error.name, error.fence, error.newer) == (NAME, 1_800_000_000_000_000, 1_800_000_000_000_001)
    for refused in (
        lambda: late.hset("{42}:owner", {"name": "Bob"}),
        lambda: late.xadd("{42}:history", {"paid": -1}),
        lambda: late.run("return redis.call('del', KEYS[1])", ["{42}:balance"]),
    ):
        with pytest.raises(StaleFence):
            refused()
    assert text(client.get("{42}:balance")) == "100"
    assert {text(k): text(v) for k, v in client.hgetall("{42}:owner").items()} == {"name": "Ada", "born": "1815"}
    assert client.xlen("{42}:history") == 4
    assert client.ttl("wheel_lock:guard:{42}account:42") == -1


def test_the_fence_is_beside_the_key_that_is_written_whatever_the_encoding_of_the_client(
    redis_server: RedisServer,
) -> None:
    Guarded(redis_server.client(), (NAME, 8)).set("bestellung:\u00fc", 100)
    with pytest.raises(StaleFence):
        Guarded(redis_server.client(encoding="latin-1"), (NAME, 7)).set("bestellung:\u00fc", -1)


def test_options_and_results_are_those_of_redis(client: redis.Redis) -> None:
    held = Guarded(client, (NAME, 7), remember=60.0)
    assert held.set("key", "value", "PX", 60_000, "NX")
    assert not held.set("key", "other", "NX")
    assert 0 < client.pttl("key") <= 60_000
    assert 0 < client.ttl("wheel_lock:guard:{key}account:42") <= 60
    assert held.hset("hash", {"a": 1, "b": 2}) == 2
    assert held.hset("hash", {"a": 3}) == 0
    assert text(held.xadd("stream", {"a": 1}, id="5-1")) == "5-1"
    for _ in range(300):
        held.xadd("stream", {"a": 1}, maxlen=100)
    assert client.xlen("stream") < 300


def test_any_script_sees_its_own_keys_and_arguments(client: redis.Redis) -> None:
    held = Guarded(client, (NAME, 7))
    script = "local sum = 0\nfor _, each in ipairs(ARGV) do sum = sum + each end\nreturn {sum, #KEYS, KEYS[2]} -- done"
    sum, keys, second = held.run(script, ["{a}1", "{a}2"], [1, 2, 3])
    assert (sum, keys, text(second)) == (6, 2, "{a}2")
    assert held.run("return nil", ["key"]) is None
    assert held.run("return false", ["key"]) is None
    assert held.run("local nothing", ["key"]) is None
    assert held.run("return {}", ["key"]) == []
    assert held.run("return {0, 9}", ["key"]) == [0, 9]
    with pytest.raises(redis.ResponseError, match="mine"):
        held.run("return redis.error_reply('mine')", ["key"])
    client.set("text", "a")
    for script in ("return redis.call('incr', KEYS[1])", "return redis.pcall('incr', KEYS[1])"):
        with pytest.raises(redis.ResponseError, match="not an integer"):
            held.run(script, ["text"])


def test_what_cannot_be_guarded_is_refused_before_anything_is_sent(client: redis.Redis) -> None:
    held = Guarded(client, (NAME, 7))
    wrong: list[Any] = [[], "key"]
    for keys in wrong:
        with pytest.raises(ValueError, match="at least one key"):
            held.run("return 1", keys)
    with pytest.raises(ValueError, match="remember must be at least 1 seconds"):
        Guarded(client, (NAME, 7), remember=0.0)
    with pytest.raises(ValueError, match="whole number"):
        Guarded(client, (NAME, -7)).set("key", 1)
    assert client.dbsize() == 0


def test_two_locks_that_guard_one_key_know_nothing_of_one_another(client: redis.Redis) -> None:
    assert Guarded(client, ("one", 7)).set("key", 1)
    assert Guarded(client, ("other", 6)).set("key", 2)


def test_a_guard_key_that_holds_no_fence_lets_nobody_pass(client: redis.Redis) -> None:
    client.set("wheel_lock:guard:{key}account:42", "text")
    with pytest.raises(redis.ResponseError):
        Guarded(client, (NAME, 7)).set("key", 1)
    assert client.get("key") is None


async def test_the_same_in_asyncio_and_with_a_lock_of_another_server(redis_server: RedisServer) -> None:
    with fake_context() as context:
        async with redis.asyncio.Redis.from_url(redis_server.url) as client:
            async with context.asyncio.lock(NAME, fencing=True) as lock:
                held = AsyncGuarded(client, lock)
                late = AsyncGuarded(client, guards.fence_of(lock))
                assert await held.set("{42}:balance", 1)
                assert await held.hset("{42}:owner", {"name": "Ada"}) == 1
                assert await held.xadd("{42}:history", {"a": 1}, id="1-1") == b"1-1"
                assert await held.run("return 5", ["{42}:balance"]) == 5
            async with context.asyncio.lock(NAME, fencing=True) as lock:
                await AsyncGuarded(client, lock).set("{42}:balance", 2)
            with pytest.raises(StaleFence):
                await late.set("{42}:balance", 3)
            assert await client.get("{42}:balance") == b"2"


@pytest.fixture
def cluster() -> Iterator[redis.RedisCluster]:
    """A cluster of one node, which insists on keys of one slot all the same."""
    with RedisServer("cluster-enabled yes") as server:
        server.admin.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: server.admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        client = redis.RedisCluster.from_url(server.url)
        yield client
        client.close()


def test_a_cluster_has_the_fence_in_the_slot_of_the_key(cluster: redis.RedisCluster) -> None:
    for key, fence in itertools.product(["plain", "{tag}key", "a}b", "{}", "a{b"], [1, 2]):
        assert Guarded(cluster, ("{other}lock", fence)).set(key, fence)
    with pytest.raises(StaleFence):
        Guarded(cluster, ("{other}lock", 1)).set("a}b", 1)


@given(st.binary(max_size=12) | st.text("{}ab").map(str.encode), st.binary())
def test_a_guard_key_is_in_the_slot_of_its_key(key: bytes, name: bytes) -> None:
    assert redis.crc.key_slot(guard_key(key, name)) == redis.crc.key_slot(key)


def test_a_pipeline_is_refused(client: redis.Redis) -> None:
    with pytest.raises(ValueError, match="not a pipeline"):
        Guarded(client.pipeline(), (NAME, 1)).set("key", 1)


def test_many_fields_are_set_at_once(client: redis.Redis) -> None:
    assert Guarded(client, (NAME, 2**52)).hset("many", {f"field{number}": number for number in range(9_001)}) == 9_001
    assert client.hlen("many") == 9_001
