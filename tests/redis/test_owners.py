"""The readable owner of a context: in the names of its connections, and at the head of its tokens."""

from __future__ import annotations

import os

import pytest
import redis

from tests.support.backend import Backend, token_of
from tests.support.background import in_a_fork
from tests.support.lock_types import KINDS, NAME, make
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext
from wheel_lock.options import MAX_OWNER_LENGTH, process_owner
from wheel_lock.protocol.owners import owner_head, owner_of
from wheel_lock.runtime.tokens import TOKEN_CHARACTERS, with_new_secret

OWNER = "night shift: billing@host-7"

named = pytest.mark.settings(owner=OWNER, readable_owner=True)
pytestmark = pytest.mark.servers("real")


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
