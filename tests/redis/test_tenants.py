"""Users of one server who are kept apart by the documented rights: each has every kind of lock, and nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.backend import LONG_S, Backend, refused
from tests.support.background import Background
from tests.support.redis_server import RedisServer, redis_server_version
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockServerError
from wheel_lock.protocol import keys, scripts

PASSWORD = "secret"
DATABASE = 1
UNSEEN_BEFORE_7 = {"client|setname"}  # commands that MONITOR does not show
COMPANIONS: list[Callable[[bytes], bytes]] = [
    keys.fence_key,
    keys.permits_key,
    lambda name: keys.queue_keys(name)[0],
    lambda name: keys.queue_keys(name)[1],
]
WHOM = [b"", b"read:", b"write:", b"permit:", b"fair:"]
FORMS = ["order:42", "{user}:1", "or{user}der"]
"""What follows a prefix: a name without a hash tag, and names with one."""


def documented_rights(prefix: str) -> list[str]:
    """The rights that the documentation gives a user whose locks' names begin with a prefix."""
    text = (Path(__file__).parents[2] / "docs" / "operations" / "rights.md").read_text()
    block = re.search(r"```acl\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return block[1].replace("<prefix>", prefix).split()


def documented_commands() -> set[str]:
    return {right[1:] for right in documented_rights("a:") if right.startswith("+")}


def add_tenant(backend: Backend, name: str) -> None:
    backend.view.execute_command("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *documented_rights(f"{name}:"))


def tenant(backend: Backend, name: str, **options: object) -> redis.Redis:
    return backend.client(username=name, password=PASSWORD, **options)


def refusals(backend: Backend) -> list[str]:
    """What the server has refused, but for redis-py's announcement of itself, which is optional."""
    needless = "setinfo" if redis_server_version() >= (7,) else "'client'"  # before Redis 7 it does not say which part
    return [repr(entry) for entry in backend.view.acl_log() if needless not in repr(entry)]


def use_every_kind(context: LockContext, prefix: str, view: redis.Redis) -> None:
    """Hold, wait for, be woken for, renew, extend, hand over and release every kind of lock, by names of every form."""
    for form in FORMS:
        name = prefix + form
        with context.lock(name, timeout=3.0, fencing=True, renew_every=0.05) as lock:
            waiter = context.lock(name, timeout=3.0, thread_local=False, fencing=True)
            waiting = Background(waiter.acquire)
            channel = keys.wake_channel(name.encode())
            eventually(lambda channel=channel: view.pubsub_numsub(channel)[0][1], LONG_S)  # type: ignore[misc]
            assert lock.locked()
            eventually(lambda lock=lock: lock.renewals, LONG_S)  # type: ignore[misc]
        assert waiting.result()
        with context.adopt(waiter.export()) as adopted:
            assert adopted.reacquire()
        many = [f"{name}:{number}" for number in range(2)]
        context.release_many(context.acquire_many(many).values())
        context.release_many(context.acquire_many(many, all_or_nothing=True).values())
        with context.multi_lock(many, timeout=3.0):
            pass
        permit = context.semaphore(name + ":permit", 2, timeout=3.0, renew_every=0.05)
        permit.set_permits(1)
        table = context.rw_lock(name + ":table", timeout=3.0, fencing=True)
        with (
            context.reentrant_lock(name + ":reentrant", timeout=3.0, fencing=True, renew_every=0.05) as reentrant,
            context.fair_lock(name + ":fair", timeout=3.0, fencing=True) as fair,
            context.rw_lock(name + ":other", timeout=3.0, renew_every=0.05).read() as reader,
            permit,
        ):
            writer = table.write()
            writer.acquire()
            writer.downgrade().release()
            eventually(lambda: reentrant.renewals and reader.renewals and permit.renewals, LONG_S)  # noqa: B023
            others: list[Any] = [
                context.reentrant_lock(name + ":reentrant"),
                context.fair_lock(name + ":fair"),
                context.rw_lock(name + ":other").write(),
                context.semaphore(name + ":permit", 2),
            ]
            waits = [Background(partial(refused, other.acquire)) for other in others]
            assert [wait.result() for wait in waits] == [True] * 4
            view.execute_command("RPUSH", name + ":data", "x")
            data = context.lock(name + ":data")
            with pytest.raises(LockServerError):
                data.acquire(blocking_timeout=LONG_S)
            everything: list[Any] = [reentrant, fair, reader, permit]
            for held in everything:
                assert held.owned()
                assert held.locked()
                assert held.extend(1.0)
                assert len(held.holders()) == 1
            for forced in (context.fair_lock(name + ":forced"), context.rw_lock(name + ":forced").write()):
                assert forced.acquire()
                assert len(context.force_release(name + ":forced")) == 1
        permit.set_permits(None)


async def use_a_task(context: LockContext, name: str) -> None:
    async with context.asyncio.lock(name) as lock:
        assert lock.is_held


@contextmanager
def monitored(port: int) -> Iterator[Callable[[str], set[str]]]:
    """What returns the commands that were called, but those from one address, and but the trying-out of rights."""
    seen: list[dict[str, Any]] = []

    def read() -> None:
        while (call := monitor.next_command())["command"] != "ECHO the end":
            seen.append(call)

    def commands(stranger: str) -> set[str]:
        found = set()
        for call in list(seen):
            command, _, words = call["command"].partition(" ")
            command, first = command.lower(), words.partition(" ")[0]
            if f"{call['client_address']}:{call['client_port']}" != stranger and not first.startswith(
                "wheel_lock:probe"
            ):
                found.add(f"{command}|{first.lower()}" if command in ("client", "script", "cluster") else command)
        return found

    with redis.Redis(port=port) as client, client.monitor() as monitor:
        reading = Background(read)
        try:
            yield commands
        finally:
            client.echo("the end")
            reading.result()


def test_the_documented_rights_are_enough_and_none_is_needless(fresh: Backend) -> None:
    add_tenant(fresh, "a")
    view = fresh.client(db=DATABASE, protocol=2)
    view.ping()
    stranger = str(view.client_info()["addr"])
    needless = {"auth", "hello", "client|setinfo"}  # which need no right, or are not needed
    rights = documented_commands() - (set() if redis_server_version() >= (7,) else UNSEEN_BEFORE_7)
    with (
        monitored(fresh.port) as commands,
        fresh.context_of(tenant(fresh, "a", db=DATABASE), fallback_interval=60.0) as context,
    ):
        use_every_kind(context, "a:", view)
        asyncio.run(use_a_task(context, "a:task"))
        with context.lock("a:kept"):
            # Whoever listens asks now and then whether the server is there, and a channel outlives its last waiter.
            waiting = Background(context.lock("a:kept", thread_local=False).acquire)
            eventually(lambda: not rights - commands(stranger), message=f"all of {sorted(rights)} are called")
        assert waiting.result()
        assert commands(stranger) - needless == rights
        assert refusals(fresh) == []
    view.close()


def test_the_scripts_call_what_is_documented() -> None:
    assert documented_commands() >= scripts.COMMANDS


def test_a_tenant_can_do_nothing_to_what_is_anothers(fresh: Backend) -> None:
    for user in ("a", "b"):
        add_tenant(fresh, user)
    a = tenant(fresh, "a", protocol=2)
    with fresh.context_of(tenant(fresh, "b")) as context:
        use_every_kind(context, "b:", fresh.view)
    for form in FORMS:
        name = b"b:" + form.encode()
        for key in (name, *[companion(name) for companion in COMPANIONS]):
            for words in (["GET", key], ["SET", key, "9007199254740991"], ["DEL", key], ["ZADD", key, 1, "x"]):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    a.execute_command(*words)
                with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)key|permission"):
                    a.eval("return redis.call(unpack(ARGV))", 0, *words)
        for channel in [*[keys.wake_channel(name, whom) for whom in WHOM], keys.redisson_channel(name)]:
            for words in (["PUBLISH", channel, "0"], ["SUBSCRIBE", channel]):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    a.execute_command(*words)
            with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)channel|permission"):
                a.eval("return redis.call('publish', ARGV[1], '0')", 0, channel)
    a.close()


@pytest.mark.parametrize("name", ["b:{a:x}", "b:{a:x", "b:a:x", "b:}a:x", "{a:x}", "{a:x", "b:={a:x}", "b:{a:x}{a:y"])
def test_no_name_of_another_tenants_looks_like_ones_own(fresh: Backend, name: str) -> None:
    add_tenant(fresh, "a")
    a = tenant(fresh, "a", protocol=2)
    for key in (name.encode(), *[companion(name.encode()) for companion in COMPANIONS]):
        with pytest.raises(redis.exceptions.NoPermissionError):
            a.execute_command("SET", key, "1")
    for whom in WHOM:
        with pytest.raises(redis.exceptions.NoPermissionError):
            a.execute_command("PUBLISH", keys.wake_channel(name.encode(), whom), "0")
    a.close()


def test_in_a_cluster_the_documented_rights_are_enough_too() -> None:
    with RedisServer("cluster-enabled yes") as server, Backend("real", server.port) as node:
        node.view.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        eventually(
            lambda: "cluster_state:ok" in node.client(decode_responses=True).execute_command("CLUSTER", "INFO"), LONG_S
        )
        rights = [*documented_rights("a:"), "+cluster|slots", "+cluster|info", "+command"]
        if redis_server_version() >= (7,):
            rights += ["-publish", "-subscribe", "-unsubscribe"]
            rights += ["+spublish", "+ssubscribe", "+sunsubscribe", "&wheel_lock:wake:probe"]
        node.view.execute_command("ACL", "SETUSER", "a", "reset", "on", f">{PASSWORD}", *rights)
        client = redis.RedisCluster(host="127.0.0.1", port=server.port, username="a", password=PASSWORD)
        context = node.context_of(client, fallback_interval=60.0)
        with context.lock("a:order", timeout=3.0, fencing=True, renew_every=0.05) as lock:
            waiter = context.lock("a:order", timeout=3.0, thread_local=False)
            waiting = Background(waiter.acquire)
            eventually(lambda: context.stats().waiting, LONG_S)
            eventually(lambda: lock.renewals, LONG_S)
        assert waiting.result()
        assert {entry["user"] for entry in node.view.client_list() if entry["name"].startswith("wheel_lock:")} == {"a"}
        waiter.release()
        context.close()
        client.close()
        assert refusals(node) == []
