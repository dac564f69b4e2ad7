"""The health of a context, as a readiness probe sees it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.support.backend import Backend, connected
from tests.support.redis_server import RedisServer, hung
from tests.support.waiting import eventually
from wheel_lock import LockContext, QuorumContext
from wheel_lock.observe import Health, NodeHealth
from wheel_lock.observe.health import assess


def when(context: LockContext | QuorumContext, condition: Callable[[Health], bool]) -> Health:
    """The first report that the condition is true of."""
    found = eventually(lambda: next(filter(condition, [context.health()]), None))
    assert found is not None
    return found


def test_a_context_that_was_not_used_is_ok_and_connects(labelled: LockContext, real: Backend) -> None:
    first = labelled.health()
    assert first.ok
    assert first.reasons == ()
    assert [(node.node, node.connected) for node in first.nodes] == [(f"127.0.0.1:{real.port}", False)]
    assert (first.last_confirmation_age_s, first.nodes[0].last_confirmation_age_s) == (None, None)
    eventually(lambda: labelled.health().nodes[0].connected)


def test_it_says_what_is_held_and_confirmed(labelled: LockContext) -> None:
    with labelled.lock("held"):
        health = labelled.asyncio.health()
        assert (health.ok, health.held, health.waiting, health.overdue, health.watching) == (True, 1, 0, 0, False)
        age_s = health.last_confirmation_age_s
        assert age_s is not None
        assert 0 <= age_s < 30
        assert age_s == health.nodes[0].last_confirmation_age_s


def test_a_server_that_cannot_be_reached_is_named_and_its_return_is_noticed(fresh_redis: RedisServer) -> None:
    with fresh_redis.client() as client, LockContext(client) as context:
        with context.lock("used"):
            pass
        fresh_redis.kill()
        health = when(context, lambda seen: not seen.ok)
        assert health.reasons[0].startswith(f"127.0.0.1:{fresh_redis.port}: not connected: ")
        assert str(health.nodes[0].trouble) in health.reasons[0]
        fresh_redis.start()
        # Nothing is held and nothing is wanted, so only the probes themselves make the connection.
        eventually(lambda: context.health().ok and context.health().nodes[0].connected)


def test_a_silent_server_and_overdue_leases_are_seen(fresh: Backend, fresh_redis: RedisServer) -> None:
    context = connected(fresh.context(timer=fresh.timer()))
    locks = context.acquire_many([f"{number}" for number in range(20)], timeout=9.0, renew_every=0.2)
    with hung(fresh_redis):
        health = when(context, lambda seen: seen.overdue > 0 and not seen.ok)
        assert health.nodes[0].overdue == health.overdue
        assert health.overdue_most >= health.overdue > 0
    eventually(lambda: context.health().ok and not context.health().overdue)
    assert context.health().overdue_most > 0
    assert all(lock is not None and lock.is_held for lock in locks.values())


def test_a_quorum_is_ok_as_long_as_a_majority_is() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(3)]
        context = stack.enter_context(LockContext.quorum([server.client() for server in servers]))
        eventually(lambda: all(node.connected for node in context.health().nodes))
        servers[0].kill()
        eventually(lambda: any(node.trouble for node in context.health().nodes))
        assert context.health().ok
        servers[1].kill()
        health = when(context, lambda seen: not seen.ok)
        assert len(health.reasons) == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"late_s": 3.25}, "the timer's thread is 3.2 s late"),
        ({"stopped": True}, "the timer is stopped"),
        ({"closed": True}, "the context is closed"),
        ({"nodes": [NodeHealth("h:1", False, 0, None, "gone")]}, "h:1: gone"),
    ],
)
def test_what_keeps_a_context_from_being_ok(settings: dict[str, object], reason: str) -> None:
    arguments = {"nodes": [], "needed": None, "closed": False, "stopped": False, "late_s": 0.5, **settings}
    assert assess(**arguments) == [reason]  # type: ignore[arg-type]


def test_it_is_frozen_and_can_be_sent_as_json(labelled: LockContext) -> None:
    with labelled.lock("held"):
        health = labelled.health()
    assert json.loads(json.dumps(health.as_dict()))["nodes"][0]["connected"] is True
    assert set(health.as_dict()) == {field.name for field in dataclasses.fields(Health)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        health.ok = False  # type: ignore[misc]
