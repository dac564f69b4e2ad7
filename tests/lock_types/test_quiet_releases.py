"""A quiet release: the lock is gone as by any release, and nobody hears of it."""

from __future__ import annotations

import pytest

from tests.lock_types.script_calls import CHANNEL, Server
from tests.lock_types.test_encoded_shortcuts import new_lease, types
from tests.support.backend import Backend
from tests.support.lock_types import NAME
from wheel_lock.lock_types.base import LockType
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import split_bulk_strings
from wheel_lock.protocol.scripts import Script


@types
def test_a_quiet_release_is_the_release_without_its_channel_or_the_same(lock_type: LockType) -> None:
    lease = new_lease(lock_type, NAME)
    aloud, quiet = lock_type.release(lease), lock_type.release_quietly(lease)
    assert quiet.script is aloud.script
    assert (quiet.keys, quiet.arguments) == (aloud.keys, aloud.arguments)
    before, after = split_bulk_strings(aloud.body), split_bulk_strings(quiet.body)
    assert after in (before, [*before[:-1], b""])
    if after != before:
        assert before[-1] == lock_type.wake_channel(lease.key)


@pytest.mark.parametrize("script", [scripts.RELEASE, scripts.RELEASE_REENTRANT], ids=lambda script: script.name)
def test_a_quiet_release_wakes_nobody_and_checks_the_owner(backend: Backend, script: Script) -> None:
    server = Server(backend)
    if script is scripts.RELEASE:
        backend.view.set(NAME, "mine")
    else:
        backend.view.hset(NAME, "mine", 1)
    listener = backend.view.pubsub()
    listener.subscribe(CHANNEL)
    assert listener.get_message(timeout=5.0) is not None
    assert server.call(script, [NAME], "another's", "") == -1
    assert backend.view.exists(NAME)
    assert server.call(script, [NAME], "mine", "") == 1
    assert not backend.view.exists(NAME)
    assert server.call(script, [NAME], "mine", "") == 0
    backend.view.publish(CHANNEL, "the first that is heard")
    message = listener.get_message(timeout=5.0)
    assert message is not None
    assert message["data"] == b"the first that is heard"
    listener.close()
