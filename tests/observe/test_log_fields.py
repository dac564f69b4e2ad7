"""The fields of log records, for structured logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend, connected
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.protocol.owners import token_id
from wheel_lock.runtime.notifier import NOTIFIER

RecordsOf = Callable[[str], list[Any]]


@pytest.fixture
def records_of(caplog: pytest.LogCaptureFixture) -> RecordsOf:
    """What returns the records of an event."""
    caplog.set_level(logging.DEBUG, "wheel_lock")

    def of(event: str) -> list[Any]:
        assert NOTIFIER.drain(LONG_S)
        return [record for record in caplog.records if getattr(record, "event", None) == event]

    return of


def test_a_loss_names_lock_reason_node_and_token(
    labelled: LockContext, label: str, real: Backend, records_of: RecordsOf, caplog: pytest.LogCaptureFixture
) -> None:
    lock = labelled.lock("order:42", timeout=20.0, renew_every=0.1)
    lock.acquire()
    token = lock.token
    assert token is not None
    real.view.delete("order:42")
    (record,) = eventually(lambda: [found for found in records_of("locks_lost") if found.context == label])
    assert (record.lock_name, record.lock_names, record.locks) == ("order:42", ["order:42"], 1)
    assert (record.reason, record.node) == ("key gone", f"127.0.0.1:{real.port}")
    assert record.token_id == token_id(token)
    assert "lost 1 lock: 'order:42': key gone" in record.getMessage()
    assert all(token.decode() not in str(vars(record)) for record in caplog.records)


def test_many_losses_are_one_record(labelled: LockContext, label: str, records_of: RecordsOf) -> None:
    locks = labelled.acquire_many([f"{number}" for number in range(9)])
    labelled.close()
    (record,) = [found for found in records_of("locks_lost") if found.context == label]
    assert (record.locks, len(record.lock_names), record.lock_name) == (9, 5, "0")
    assert len(locks) == 9


def test_an_outage_names_the_node_and_the_cause(
    fresh: Backend, fresh_redis: RedisServer, records_of: RecordsOf
) -> None:
    context = connected(fresh.context(timer=fresh.timer(), label="outage"))
    lock = context.lock("held", timeout=60.0)
    lock.acquire()
    fresh_redis.kill()
    (outage,) = eventually(lambda: records_of("outage"))
    assert (outage.node, outage.locks, outage.context) == (f"127.0.0.1:{fresh_redis.port}", 1, "outage")
    assert outage.reason
    assert records_of("connection_lost")[0].node == outage.node
    fresh_redis.start()
    (over,) = eventually(lambda: records_of("outage_over"))
    assert (over.node, over.context) == (outage.node, "outage")


def test_all_records_have_all_fields() -> None:
    fields = log_fields("event")
    assert set(fields) == {"event", "context", "lock_name", "lock_names", "locks", "reason", "node", "token_id"}
    assert set(log_fields("event", names=[b"\xff"], reason="why")) == set(fields)
    # A key that a record has already raises KeyError in the logging module.
    logging.getLogger("wheel_lock").makeRecord("wheel_lock", 10, "file", 1, "text", (), None, extra=fields)
