"""What holds a lock: asked for through a lock of any kind, and in the error of a block that did not get it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from tests.support.backend import BOTH, LONG_S, Backend
from tests.support.callers import Caller
from tests.support.lock_types import KINDS, NAME, make
from wheel_lock import Holder, LockContext, LockNotAcquired
from wheel_lock.locks import operations
from wheel_lock.protocol.owners import token_id

OWNER = "billing@host-7"
MODES = {"read": "read", "write": "write", "semaphore": "permit"}
TIMEOUT_S = 30.0
ASKED = [kind for kind in KINDS if kind != "multi"]

named = pytest.mark.settings(owner=OWNER, readable_owner=True)
pytestmark = pytest.mark.servers("real")


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the query of a refused acquire all the time that a busy machine takes."""
    monkeypatch.setattr(operations, "_LOOK_S", LONG_S)


def rival_of(kind: str) -> str:
    """The kind of lock that is refused while one of the kind is held."""
    return {"read": "write"}.get(kind, kind)


@named
@pytest.mark.parametrize("kind", ASKED)
def test_a_lock_of_any_kind_shows_its_holder_to_whoever_asks(me: Caller, stranger: Caller, kind: str) -> None:
    mine, theirs = make(me.locks, kind, timeout=TIMEOUT_S), make(stranger.locks, kind)
    assert mine.holder() is None
    assert theirs.holders() == ()
    with mine:
        token = mine.token
        for lock in (mine, theirs):
            [holder] = lock.holders()
            assert lock.holder().token_id == holder.token_id == token_id(token)
            assert holder.owner == OWNER
            assert holder.mode == MODES.get(kind, "exclusive")
            assert holder.count == 1
            assert 0 < holder.remaining_s <= TIMEOUT_S
            assert token.decode() not in repr(holder)
    assert theirs.holder() is None


@BOTH
@pytest.mark.settings(readable_owner=False)
def test_all_holders_are_returned_and_those_that_hide_their_owner_have_none(
    context: LockContext, backend: Backend
) -> None:
    second = backend.context(owner="reports", readable_owner=True)
    with context.rw_lock(NAME, 20.0).read() as first, second.rw_lock(NAME, 60.0).read() as other:
        assert [holder.owner for holder in other.holders()] == [None, "reports"]
        assert {holder.mode for holder in first.holders()} == {"read"}
        first_holder = first.holder()
        assert first_holder is not None
        assert first_holder.owner is None  # its lease ends first
    with context.semaphore(NAME, 2), second.semaphore(NAME, 2) as permit:
        assert {holder.owner for holder in permit.holders()} == {None, "reports"}


def test_a_lock_of_another_library_and_a_key_that_is_none(context: LockContext, backend: Backend) -> None:
    lock = context.lock(NAME)
    assert backend.view.lock(NAME, timeout=None).acquire(token="mine-alone")
    holder = lock.holder()
    assert holder is not None
    assert holder.owner is None
    assert holder.remaining_s is None
    backend.view.delete(NAME)
    backend.view.hset(NAME, "@admin:field", "value")
    assert lock.holders() == ()


@named
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_that_does_not_get_its_lock_says_what_holds_it(me: Caller, stranger: Caller, kind: str) -> None:
    with make(me.locks, kind, timeout=TIMEOUT_S), pytest.raises(LockNotAcquired) as raised:
        make(stranger.locks, rival_of(kind), blocking=False).enters()
    holder = raised.value.holder
    assert holder is not None
    assert holder.owner == OWNER
    assert f"held by {OWNER} for another " in str(raised.value)
    for again in (copy.copy(raised.value), pickle.loads(pickle.dumps(raised.value))):
        assert str(again) == str(raised.value)
        assert again.holder == holder
        assert again.lock_name == raised.value.lock_name == (None if kind == "multi" else NAME)


def test_an_error_without_a_holder_is_as_it_was() -> None:
    error = LockNotAcquired("It could not be acquired in time", NAME)
    assert error.holder is None
    assert pickle.loads(pickle.dumps(error)).holder is None
    assert str(Holder("a", "12345678", 1.25)) == "a for another 1.2 s"
    assert str(Holder(None, "12345678", None)) == "the owner of token 12345678 without a time limit"


def test_a_lock_that_is_free_again_when_it_is_looked_at(
    through_proxy: LockContext, real: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    real.view.set(NAME, "another", px=60_000)
    lock = through_proxy.lock(NAME, max_attempts=1)
    asked = through_proxy._engine.look_at

    def freed(*arguments: Any) -> None:
        real.view.delete(NAME)
        asked(*arguments)

    monkeypatch.setattr(through_proxy._engine, "look_at", freed)
    with pytest.raises(LockNotAcquired) as raised:
        lock.__enter__()
    assert raised.value.holder is None
    assert str(raised.value) == f"The lock '{NAME}' could not be acquired in time"
