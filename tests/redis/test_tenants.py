"""Users of one server who are kept apart by the documented rights: each has all kinds of lock, and nothing of the other's."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.redis.support import LONG_S, REFUSED_S, Backend, Background
from tests.support.redis_server import RedisServer, redis_server_version
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockServerError
from wheel_lock.protocol import names, scripts

PASSWORD = "secret"
DATABASE = 1
BEFORE_7 = {"ping"}  # which only servers before Redis 7 are sent
COMPANIONS: list[Callable[[bytes], bytes]] = [
    names.fence_key,
    names.permits_key,
    lambda name: names.queue_keys(name)[0],
    lambda name: names.queue_keys(name)[1],
]
WHOM = [b"", b"read:", b"write:", b"permit:", b"fair:"]
FORMS = ["order:42", "{user}:1", "or{user}der"]
"""What follows a prefix: a name without a hash tag, and names with one."""


def documented_rights(prefix: str) -> list[str]:
    """The rights that the documentation gives a user whose locks' names begin with a prefix."""
    text = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
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
    """What the server has refused. redis-py tells of itself, and needs not."""
    needless = "setinfo" if redis_server_version() >= (7,) else "'client'"  # before Redis 7 it does not say which part
    return [repr(entry) for entry in backend.view.acl_log() if needless not in repr(entry)]


def use_every_kind(context: LockContext, prefix: str, view: redis.Redis) -> None:
    """Hold, wait for, be woken for, renew, extend, hand over and release every kind of lock, by names of every form."""
    for form in FORMS:
        name = prefix + form
        with context.lock(name, timeout=3.0, fencing=True, renew_every=0.05) as lock:
            waiter = context.lock(name, timeout=3.0, thread_local=False, fencing=True)
            waiting = Background(waiter.acquire)
            channel = names.wake_channel(name.encode())
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
            for held in (reentrant, reader, permit):
                eventually(lambda held=held: held.renewals, LONG_S)  # type: ignore[misc]
            others = [
                context.reentrant_lock(name + ":reentrant"),
                context.fair_lock(name + ":fair"),
                context.rw_lock(name + ":other").write(),
                context.semaphore(name + ":permit", 2),
            ]
            for other in others:

                def wait(other: object = other) -> object:
                    return other.acquire(blocking_timeout=0.05)  # type: ignore[attr-defined]

                assert not Background(wait).result()
            with pytest.raises(LockServerError):
                held_by_data = name + ":data"
                view.execute_command("RPUSH", held_by_data, "x")
                context.lock(held_by_data).acquire(blocking_timeout=LONG_S)
            for held in (reentrant, fair, reader, permit):
                assert held.owned()
                assert held.locked()
                assert held.extend(1.0)
        permit.set_permits(None)


async def use_a_task(context: LockContext, name: str) -> None:
    async with context.asyncio.lock(name) as lock:
        assert lock.is_held


class Monitor:
    """What a server is sent, and what its scripts call, by MONITOR on a connection of its own."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._lines: list[bytes] = []
        self._socket.sendall(b"MONITOR\r\n")
        self._file = self._socket.makefile("rb")
        assert self._file.readline() == b"+OK\r\n"
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._lines.extend(self._file)

    def commands(self, strangers: set[bytes]) -> set[str]:
        """The commands that were called, but those from some addresses, and but the trying-out of rights."""
        found = set()
        for line in list(self._lines):
            told = re.match(rb'\+[\d.]+ \[\d+ (\S+)\] "([^"]*)"(?: "([^"]*)")?', line)
            assert told is not None, line
            address, command, first = told[1], told[2].decode().lower(), (told[3] or b"").decode()
            if address in strangers or first.startswith("wheel_lock:probe"):
                continue
            found.add(f"{command}|{first.lower()}" if command in ("client", "script", "cluster") else command)
        return found

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._file.close()
        self._socket.close()


@contextmanager
def monitored(port: int) -> Iterator[Monitor]:
    monitor = Monitor(port)
    try:
        yield monitor
    finally:
        monitor.close()


def test_the_documented_rights_are_enough_and_none_is_needless(fresh: Backend) -> None:
    add_tenant(fresh, "a")
    view = fresh.client(db=DATABASE, protocol=2)
    view.ping()
    address = view.connection_pool.get_connection()
    stranger = b"%s:%d" % (b"127.0.0.1", address._sock.getsockname()[1])
    view.connection_pool.release(address)
    with monitored(fresh.port) as monitor:
        with fresh.context_of(tenant(fresh, "a", db=DATABASE), fallback_interval=60.0) as context:
            use_every_kind(context, "a:", view)
            asyncio.run(use_a_task(context, "a:task"))
        assert refusals(fresh) == []
        expected = documented_commands() - (BEFORE_7 if redis_server_version() >= (7,) else set())
        always = {"auth", "hello", "client|setinfo"}  # which need no right, or are not needed
        eventually(lambda: monitor.commands({stranger}) - always == expected, LONG_S)
    view.close()


def test_the_scripts_call_what_is_documented() -> None:
    assert scripts.COMMANDS <= documented_commands()


def test_a_tenant_can_do_nothing_to_what_is_anothers(fresh: Backend) -> None:
    for name in ("a", "b"):
        add_tenant(fresh, name)
    a = tenant(fresh, "a", protocol=2)
    with fresh.context_of(tenant(fresh, "b")) as context:
        use_every_kind(context, "b:", fresh.view)
    for form in FORMS:
        name = b"b:" + form.encode()
        for key in (name, *[companion(name) for companion in COMPANIONS]):
            for command in (["GET", key], ["SET", key, "9007199254740991"], ["DEL", key], ["ZADD", key, 1, "x"]):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    a.execute_command(*command)
                with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)key|permission"):
                    a.eval("return redis.call(unpack(ARGV))", 0, *command)
        for channel in [*[names.wake_channel(name, whom) for whom in WHOM], names.redisson_channel(name)]:
            for command in (["PUBLISH", channel, "0"], ["SUBSCRIBE", channel]):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    a.execute_command(*command)
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
            a.execute_command("PUBLISH", names.wake_channel(name.encode(), whom), "0")
    a.close()


def test_a_name_of_a_third_form_is_refused_what_needs_a_companion_and_no_more(fresh: Backend) -> None:
    add_tenant(fresh, "a")
    with fresh.context_of(tenant(fresh, "a")) as context:
        with context.lock("a:}x", timeout=2.0) as lock:
            assert lock.is_held
            assert not Background(
                lambda: context.lock("a:}x", timeout=2.0).acquire(blocking_timeout=REFUSED_S)
            ).result()
        with pytest.raises(LockServerError) as caught:
            context.lock("a:}x", timeout=2.0, fencing=True).acquire()
        assert caught.value.code == "NOPERM"


def test_in_a_cluster_the_documented_rights_are_enough_too() -> None:
    with RedisServer("cluster-enabled yes") as server, Backend("real", server.port) as node:
        node.view.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        eventually(lambda: b"cluster_state:ok" in bytes(node.view.execute_command("CLUSTER INFO")), LONG_S)
        rights = [*documented_rights("a:"), "-publish", "-subscribe", "-unsubscribe"]
        if redis_server_version() >= (7,):
            rights += ["+spublish", "+ssubscribe", "+sunsubscribe", "&wheel_lock:wake:probe"]
        else:
            rights += ["+publish", "+subscribe", "+unsubscribe"]
        rights += ["+cluster|slots", "+cluster|info"]
        node.view.execute_command("ACL", "SETUSER", "a", "reset", "on", f">{PASSWORD}", *rights)
        admin = redis.RedisCluster(host="127.0.0.1", port=server.port)
        settings = dict(admin.nodes_manager.connection_kwargs, username="a", password=PASSWORD)
        admin.nodes_manager.connection_kwargs.update(settings)
        node.view.acl_log_reset()
        with LockContext(admin) as context:
            with context.lock("a:order", timeout=3.0, fencing=True, renew_every=0.05) as lock:
                waiter = context.lock("a:order", timeout=3.0, thread_local=False)
                waiting = Background(waiter.acquire)
                eventually(lambda: context.stats().waiting, LONG_S)
                eventually(lambda: lock.renewals, LONG_S)
            assert waiting.result()
            waiter.release()
        admin.close()
        assert refusals(node) == []
