"""Owners of locks on a quorum: in the tokens at each master. Which holder a majority has is not asked for."""

from __future__ import annotations

import pytest

from tests.quorum.masters import Masters
from tests.support.background import Background
from tests.support.logged import logged
from tests.support.waiting import eventually
from wheel_lock import LockAlreadyHeld, LockNotAcquired, WheelLockError
from wheel_lock.protocol.owners import owner_of

NAME = "order:42"
OWNER = "billing@host-7"


def test_the_locks_of_a_quorum_refuse_the_question(masters: Masters) -> None:
    with masters.context(owner=OWNER, readable_owner=True) as quorum, quorum.reentrant_lock(NAME) as lock:
        assert {owner_of(value) for value in masters.holders(NAME) if value} == {OWNER}
        assert lock.owned()
        with pytest.raises(WheelLockError, match="several masters"):
            lock.holder()
        with pytest.raises(WheelLockError, match="force_release\\(\\) is not available"):
            quorum.force_release(NAME)
        with pytest.raises(LockNotAcquired) as raised:
            quorum.lock(NAME, blocking=False).__enter__()
        assert raised.value.holder is None


def test_a_prefix_precedes_the_name_at_each_master(masters: Masters) -> None:
    with masters.context(prefix="billing:", timeout=20.0, blocking_timeout=0.05) as quorum, quorum.lock(NAME) as lock:
        assert (lock.name, lock.timeout) == (NAME, 20.0)
        eventually(lambda: all(masters.holders("billing:" + NAME)))  # a majority is enough for the grant
        assert not any(masters.holders(NAME))
        assert lock.locked()
        assert lock.owned()
        assert not quorum.reentrant_lock(NAME).acquire()


def test_an_endless_wait_for_the_callers_own_release_is_refused(masters: Masters) -> None:
    with masters.context() as quorum, quorum.lock(NAME) as lock:
        with pytest.raises(LockAlreadyHeld, match="by this very thread or task"):
            quorum.lock(NAME).acquire()
        assert lock.owned()
        assert quorum.stats().waiting == 0


def test_a_long_wait_is_said_without_the_holder(masters: Masters) -> None:
    with masters.context() as rival, masters.stepped() as (quorum, clock), rival.lock(NAME, 60.0), logged() as log:
        waits = Background(lambda: quorum.lock(NAME, blocking_timeout=30.0).acquire())
        eventually(lambda: quorum.stats().waiting == 1)
        for _ in range(12):
            clock.advance(1.0)
        eventually(lambda: log.said("waiting for 'order:42'"))
        for _ in range(20):
            clock.advance(1.0)
        assert not waits.result()
        assert len(log.said("waiting for")) == 1
        assert log.said("its holder is not known")
