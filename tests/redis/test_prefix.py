"""The prefix of a context, which precedes each name at the server, and other settings of contexts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import redis

from tests.support.backend import Backend
from tests.support.callers import Caller
from tests.support.lock_types import KINDS, NAME, make
from tests.support.waiting import eventually
from wheel_lock import InvalidHandoff, LockContext, LockNotAcquired
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
