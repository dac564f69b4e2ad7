"""The prefix of a context, which precedes each name at the server, its readable owner, and other settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import redis

from tests.support.backend import Backend, token_of
from tests.support.background import in_a_fork
from tests.support.callers import Caller
from tests.support.lock_types import KINDS, NAME, make
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import InvalidHandoff, LockContext, LockNotAcquired
from wheel_lock.options import MAX_OWNER_LENGTH, process_owner
from wheel_lock.protocol.owners import owner_head, owner_of
from wheel_lock.runtime.tokens import TOKEN_CHARACTERS, with_new_secret
from wheel_lock.testing import fake_context

PREFIX = "billing:"
KEY = PREFIX + NAME

prefixed = pytest.mark.settings(prefix=PREFIX)
pytestmark = pytest.mark.servers("real")


def keys(backend: Backend) -> set[bytes]:
    return {bytes(key) for key in backend.view.scan_iter()}


@prefixed
@pytest.mark.parametrize("kind", KINDS)
def test_the_key_of_each_kind_has_the_prefix_and_its_name_has_not(me: Caller, backend: Backend, kind: str) -> None:
    with make(me.locks, kind) as lock:
        assert backend.view.exists(KEY)
        assert not any(key == NAME.encode() or key.startswith(b"{" + NAME.encode()) for key in keys(backend))
        names = lock.names if kind == "multi" else (lock.name,)
        assert NAME in names
        assert {held.name for held in me.context.held()} == set(names)
        if kind != "multi":
            assert lock.locked()
            assert lock.holder() is not None
            assert lock.owned()
    assert not backend.view.exists(KEY)


@prefixed
def test_a_prefixed_name_excludes_the_whole_name_elsewhere(context: LockContext, backend: Backend) -> None:
    elsewhere, other = backend.context(), backend.context(prefix="reports:")
    with context.lock(NAME):
        assert not elsewhere.lock(KEY).acquire(blocking=False)
        with other.lock(NAME), elsewhere.lock(NAME):
            pass
        with pytest.raises(LockNotAcquired) as refused, context.lock(NAME, blocking=False):
            pass
    assert refused.value.lock_name == NAME
    assert refused.value.holder is not None


@prefixed
def test_bulk_results_have_the_names_as_they_were_given(context: LockContext, backend: Backend) -> None:
    for both in (False, True):
        locks: dict[Any, Any] = context.acquire_many(["a", b"b"], all_or_nothing=both)
        assert list(locks) == ["a", b"b"]
        assert keys(backend) >= {b"billing:a", b"billing:b"}
        assert {lock.name for lock in locks.values()} == {"a", b"b"}
        context.release_many(locks.values())
    with context.lock("a"):
        assert context.acquire_many(["a", "c"], blocking=True, blocking_timeout=0.05)["a"] is None


@prefixed
def test_an_exported_text_has_the_whole_name(context: LockContext, backend: Backend) -> None:
    def exported(name: str | bytes = NAME) -> str:
        lock = context.lock(name)
        lock.acquire()
        return lock.export()

    same, whole, part = backend.context(prefix=PREFIX), backend.context(), backend.context(prefix="bill")
    for adopter, name in ((same, NAME), (whole, KEY), (part, "ing:" + NAME)):
        with adopter.adopt(exported()) as adopted:
            assert adopted.name == name
            assert backend.view.exists(KEY)
        many = adopter.adopt_many([exported()])
        assert list(many) == [name]
        adopter.release_many(many.values())
        assert not backend.view.exists(KEY)
    other, text = backend.context(prefix="reports:"), exported()
    for adopt in (other.adopt, lambda text: other.adopt_many([text])):
        with pytest.raises(InvalidHandoff, match=r"'billing:.*' cannot be adopted .* not under its prefix 'reports:'"):
            adopt(text)
    context.adopt(text).release()
    context.adopt(exported(b"\xff")).release()


@prefixed
def test_a_decorator_and_a_leader_have_the_prefix(context: LockContext, backend: Backend) -> None:
    @context.locked("report:{number}")
    def write(number: int) -> bool:
        return bool(backend.view.exists(f"billing:report:{number}"))

    assert write(7)
    with context.leader("chief") as leader:
        assert leader.name == "chief"
        eventually(lambda: bool(backend.view.exists("billing:chief")))


WRONG: dict[str, tuple[str, list[Any]]] = {
    "prefix": ("prefix must", ["x" * 512, "wheel_lock:", "wheel_lock:a", "wheel", "w", b"a:", 5, None, "\ud800"]),
    "timeout": ("timeout must", [0.01, "30", None]),
    "blocking_timeout": ("blocking_timeout must", [-1]),
    "owner": (
        "owner must be a str of 1 to 64 printable characters",
        ["", " \n", "a\tb", "a\x00", "\ud800", "x" * 65, "é" * 33, b"bytes", 7, ["a"]],
    ),
}


@pytest.mark.parametrize("setting", WRONG)
def test_a_wrong_setting_is_refused_at_once_by_all_that_makes_contexts(setting: str) -> None:
    says, values = WRONG[setting]
    makers: list[Callable[..., object]] = [
        partial(LockContext, redis.Redis(port=1)),
        partial(LockContext.from_url, "redis://localhost:1"),
        partial(LockContext.quorum, [redis.Redis(port=port) for port in (1, 2, 3)]),
    ]
    for make_context, value in product(makers, values):
        with pytest.raises(ValueError, match=f"^{says}"):
            assert make_context(**{setting: value}) is value


def test_the_defaults_hold_for_locks_that_say_none() -> None:
    with fake_context(prefix=PREFIX, timeout=10.0, blocking_timeout=0.05) as context:
        locks = (
            context.lock,
            context.reentrant_lock,
            context.fair_lock,
            context.asyncio.lock,
            context.asyncio.fair_lock,
        )
        for make_lock in locks:
            assert (make_lock("a").timeout, make_lock("a", 20.0).timeout) == (10.0, 20.0)
        assert context.rw_lock("a").read().timeout == context.semaphore("a", 2).timeout == 10.0
        [granted] = context.acquire_many(["many"]).values()
        assert granted is not None
        assert granted.timeout == 10.0
        assert not context.lock("many").acquire()
        assert not context.lock("many", fencing=True).acquire()
        assert not context.fair_lock("many").acquire()
        assert not context.multi_lock(["many", "more"]).acquire()
        assert context.acquire_many(["many"], blocking=True) == {"many": None}
        granted.release()


def test_a_contexts_repr_shows_its_prefix() -> None:
    with LockContext(redis.Redis(port=1), prefix=PREFIX) as context:
        assert repr(context) == "<LockContext localhost:1 'billing:' 0 held>"
        assert repr(context.asyncio) == f"<AsyncContext of {context!r}>"


# The readable owner: in the names of connections, and at the head of tokens


OWNER = "night shift: billing@host-7"

named = pytest.mark.settings(owner=OWNER, readable_owner=True)


def names(client: redis.Redis) -> set[str]:
    """The names of the library's connections."""
    return {entry["name"] for entry in client.client_list() if entry["name"].startswith("wheel_lock")}


def test_the_default_is_the_host_and_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, number = process_owner().rpartition(":")
    assert host
    assert number == str(os.getpid())
    monkeypatch.setattr("wheel_lock.options._host_name", lambda: "h" * 64)
    assert len(process_owner()) == MAX_OWNER_LENGTH
    assert process_owner().endswith(f"h:{os.getpid()}")


@pytest.mark.settings(owner=OWNER, readable_owner=False)
def test_the_connections_have_the_owner_in_their_names_and_the_tokens_have_not(
    backend: Backend, context: LockContext, other: LockContext
) -> None:
    with context.lock(NAME) as lock, other.lock("another"):
        shown = {"wheel_lock:night%20shift:%20billing@host-7", f"wheel_lock:{process_owner()}"}
        assert shown <= names(backend.view)
        assert owner_of(token_of(lock)) is None
        assert len(token_of(lock)) == TOKEN_CHARACTERS


@named
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_lock_works_with_the_owner_in_its_tokens(
    backend: Backend, context: LockContext, other: LockContext, kind: str
) -> None:
    lock, rival = make(context, kind), make(other, kind)
    if kind == "read":
        rival = other.rw_lock(NAME).write()
    single = lock.locks[NAME] if kind == "multi" else lock
    tokens = set()
    for _ in range(2):
        with lock:
            assert owner_of(token_of(single)) == OWNER
            tokens.add(token_of(single))
            assert single.owned()
            assert single.locked()
            assert single.extend(5.0)
            assert not rival.acquire(blocking=False)
        assert not single.owned()
    assert len(tokens) == 2
    with rival:
        assert not lock.acquire(blocking=False)
    assert not backend.view.exists(NAME)


def test_a_forked_child_has_an_owner_of_its_own(context: LockContext, backend: Backend) -> None:
    with context.lock("before"):
        parent = process_owner()

    def check() -> None:
        with context.lock(NAME) as lock:
            owner = owner_of(token_of(lock))
            assert owner == process_owner()
            assert owner.endswith(f":{os.getpid()}")
            assert owner != parent
            assert f"wheel_lock:{owner}" in names(backend.client(protocol=2))

    in_a_fork(check)


def test_a_user_without_the_right_to_name_connections_holds_locks_all_the_same(backend: Backend) -> None:
    # Before Redis 7 a subcommand cannot be taken away from a command that is allowed.
    backend.view.execute_command(*("ACL", "SETUSER", "nameless", "on", ">secret", "~*", "&*", "+@all", "-client"))
    try:
        client = backend.client(username="nameless", password="secret")
        context = backend.context_of(client, owner=OWNER, readable_owner=True)
        with context.lock(NAME) as lock:
            assert lock.owned()
    finally:
        backend.view.acl_deluser("nameless")


def test_the_name_that_a_client_has_stays(redis_server: RedisServer) -> None:
    client = redis_server.client(client_name="mine")
    with LockContext(client, owner=OWNER) as context, context.lock(NAME):
        assert "mine" in {entry["name"] for entry in redis_server.client().client_list()}
        assert not any("night" in entry["name"] for entry in redis_server.client().client_list())


@pytest.mark.parametrize("before", [b"", b"r:", owner_head(OWNER), b"p:" + owner_head(OWNER)])
@pytest.mark.parametrize("after", [b"", b":7", b":" + b"9" * 20])
def test_another_try_has_another_secret_and_nothing_else(before: bytes, after: bytes) -> None:
    waiter = b"w" * TOKEN_CHARACTERS if not after else b""
    token = before + waiter + b"s" * TOKEN_CHARACTERS + after
    another = with_new_secret(token)
    assert another != token
    assert len(another) == len(token)
    assert another.startswith(before + waiter)
    assert another.endswith(after)
    assert b"s" * TOKEN_CHARACTERS not in another
