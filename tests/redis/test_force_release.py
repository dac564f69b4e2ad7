"""A lock that is released for its holders: exactly those, and with a loss for each of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.backend import BOTH, Backend
from tests.support.lock_types import NAME
from wheel_lock import HolderChanged, LockContext, WheelLockError

pytestmark = pytest.mark.servers("real")


@pytest.mark.parametrize("now", [None, b"x" * 22], ids=["free", "another's"])
def test_a_lock_that_has_changed_hands_in_between_is_not_released(
    backend: Backend, context: LockContext, other: LockContext, monkeypatch: pytest.MonkeyPatch, now: bytes | None
) -> None:
    assert other.lock(NAME, renew=False).acquire()
    request = context._engine.force_release

    def meanwhile(*arguments: Any) -> None:
        backend.view.delete(NAME)
        if now is not None:
            backend.view.set(NAME, now)
        request(*arguments)

    monkeypatch.setattr(context._engine, "force_release", meanwhile)
    if now is None:
        assert context.force_release(NAME) == ()
    else:
        with pytest.raises(HolderChanged, match="another holder"):
            context.force_release(NAME)
    assert backend.view.get(NAME) == now


@BOTH
def test_what_has_not_the_form_of_a_lock_stays_unless_it_is_asked_for(backend: Backend, context: LockContext) -> None:
    backend.view.set(NAME, "mine-alone")
    with pytest.raises(WheelLockError, match="not the form of a lock"):
        context.force_release(NAME)
    assert backend.view.get(NAME) == b"mine-alone"
    [holder] = context.force_release(NAME, foreign=True)
    assert holder.owner is None
    assert not backend.view.exists(NAME)
    backend.view.hset(NAME, mapping={"a": "1", "b": "2"})
    for foreign in (False, True):
        with pytest.raises(WheelLockError, match="is a hash"):
            context.force_release(NAME, foreign=foreign)
    assert backend.view.hlen(NAME) == 2


def test_more_holders_than_can_be_compared_stay(backend: Backend, context: LockContext) -> None:
    now_s, _ = backend.view.time()
    expiry = (int(now_s) + 60) * 1000
    backend.view.zadd(NAME, {f"p:{number:022d}": expiry for number in range(65)})
    with pytest.raises(WheelLockError, match="more than 64 holders"):
        context.force_release(NAME)
    assert backend.view.zcard(NAME) == 65
