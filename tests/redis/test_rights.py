"""A right that a kind of lock needs and the user lacks: the first acquire is refused, by name, before a grant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.backend import BOTH, LONG_S, Backend, refused
from tests.support.lock_types import make
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockServerError
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import split_bulk_strings

pytestmark = pytest.mark.servers("real")


def acquired(lock: Any, **how: Any) -> object:
    """The lock, when it is acquired: one that is dropped would be abandoned."""
    assert lock.acquire(**how)
    return lock


async def _acquire_a(context: LockContext) -> object:
    async with context.asyncio.lock("a", timeout=2.0) as lock:
        return lock


SETS = ["read", "write", "semaphore"]
KINDS: dict[str, Callable[[LockContext], object]] = {
    **{
        kind: lambda context, kind=kind: acquired(make(context, kind, "a", timeout=2.0))  # type: ignore[misc]
        for kind in ("exclusive", "fenced exclusive", "reentrant", "fair", *SETS, "multi")
    },
    "not waited for": lambda context: acquired(context.lock("a", timeout=2.0), blocking=False),
    "polled": lambda context: acquired(context.lock("a", timeout=2.0, retry_every=0.05)),
    "in bulk": lambda context: context.acquire_many(["a", "b"], timeout=2.0),
    "all or nothing": lambda context: context.acquire_many(["a", "b"], timeout=2.0, all_or_nothing=True),
    "of asyncio": lambda context: asyncio.run(_acquire_a(context)),
}
STRINGS = [kind for kind in KINDS if kind not in (*SETS, "reentrant")]
NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(STRINGS, ("evalsha", "pexpire", "get", "del")),
    **dict.fromkeys(SETS, ("evalsha", "pexpire", "zscore", "zadd", "zrem", "time")),
    "reentrant": ("evalsha", "pexpire", "hexists", "hset", "del"),
    "fair": ("evalsha", "pexpire", "get", "del", "zrem", "zrange"),
}


def context_without(backend: Backend, *commands: str) -> LockContext:
    """A context of a user who may do everything but call some commands."""
    rights = [f"-{command}" for command in commands]
    backend.view.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all", *rights)
    return backend.context_of(backend.client(username="app", password="secret"))


def grant_all(backend: Backend) -> None:
    backend.view.execute_command("ACL", "SETUSER", "app", "+@all")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_is_named_and_nothing_is_granted(fresh: Backend, kind: str) -> None:
    for command in NEEDS[kind]:
        with context_without(fresh, command) as context:
            with pytest.raises(LockServerError, match=rf"\b{command.upper()}\b.*\(lock 'a'\)") as caught:
                KINDS[kind](context)
            assert caught.value.code == "NOPERM"
            assert fresh.view.keys("*") == []
            grant_all(fresh)
            held = KINDS[kind](context)
            assert held
        fresh.view.flushall()


def test_a_user_whose_scripts_are_loaded_needs_no_eval(fresh: Backend) -> None:
    context = context_without(fresh, "eval")
    with context.lock("a", timeout=2.0, renew_every=0.05) as lock:
        eventually(lambda: lock.renewals, LONG_S)
    context.close()
    fresh.view.script_flush()
    context = context_without(fresh, "eval", "script")
    with pytest.raises(LockServerError, match=r"\bEVAL\b"):
        context.lock("a", timeout=2.0).acquire()


def test_what_may_not_be_published_or_called_by_type_is_done_without(fresh: Backend) -> None:
    context = context_without(fresh, "publish", "type")
    for name in ("exclusive", "fenced exclusive", "reentrant", "fair", "semaphore"):
        lock = KINDS[name](context)
        lock.release()  # type: ignore[attr-defined]


@BOTH
def test_the_script_that_looks_for_rights_knows_all_commands(backend: Backend) -> None:
    # And leaves nothing behind, in the form that has to try them out.
    call = scripts.rights_call(keyed=False)
    words = split_bulk_strings(call.body)
    assert backend.view.eval(scripts.RIGHTS.plain.source.decode(), call.keys, *words) == []
    assert backend.view.keys("*") == []


def test_without_the_right_to_look_into_a_hash_it_counts_as_held_by_another(fresh: Backend) -> None:
    context = context_without(fresh, "hlen", "hkeys")
    fresh.view.hset("a", mapping={"name": "Alice", "born": "1990"})
    assert refused(context.reentrant_lock("a").acquire)
    with context.reentrant_lock("b") as lock:
        assert not context_without(fresh, "hkeys").reentrant_lock("b").acquire(blocking=False)
        assert lock.is_held


def test_a_lock_that_is_not_renewed_needs_no_right_to_do_so(fresh: Backend) -> None:
    context = context_without(fresh, "pexpire")
    with context.lock("a", timeout=2.0, renew=False) as lock:
        assert lock.is_held
        with pytest.raises(LockServerError, match="PEXPIRE"):
            context.lock("b", timeout=2.0).acquire()
