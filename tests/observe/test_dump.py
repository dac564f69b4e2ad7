"""The text of a dump, and the values that `wheel-lock top` shows."""

from __future__ import annotations

import io
import json
import os
import re

import pytest

from tests.observe.conftest import use
from tests.support.backend import Backend, connected
from tests.support.background import Background
from tests.support.redis_server import RedisServer, hung
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.diagnostics.dump import dumped, state
from wheel_lock.engine.leases import Held
from wheel_lock.lease import Lease
from wheel_lock.protocol.owners import token_id
from wheel_lock.rows import Rows


def test_it_shows_what_is_held_and_waited_for_and_no_token(labelled: LockContext, label: str, real: Backend) -> None:
    with labelled.lock("order:42") as lock, labelled.lock(b"\xff\n", timeout=3.0):
        waiter = Background(lambda: use(labelled.lock("order:42")))
        eventually(lambda: labelled.stats().waiting == 1)
        labelled.dump(file := io.StringIO())
        assert lock.token is not None
        token = lock.token
    waiter.result()
    text = file.getvalue()
    assert text.startswith(f"wheel_lock context {label} in process {os.getpid()}: ok\n")
    assert f"  127.0.0.1:{real.port}: connected, 0 overdue, last confirmation " in text
    assert "2 locks held, 0 overdue, 1 waiting" in text
    assert re.search(r"^  'order:42': 1, \d+\.\d{3} s$", text, re.MULTILINE)
    row = rf"^  'order:42': {token_id(token)}, \w+, \d+\.\d+ s, \d+\.\d+ s, 30 s, \d+$"
    assert re.search(row, text, re.MULTILINE)
    assert r"\\xff\n" in text
    assert token.decode() not in text
    assert "  acquired: 2\n" in text


def test_it_goes_to_stderr_and_takes_text_files_only(labelled: LockContext, capsys: pytest.CaptureFixture[str]) -> None:
    labelled.asyncio.dump()
    assert capsys.readouterr().err.startswith("wheel_lock context")
    with pytest.raises(TypeError, match="int"):
        labelled.dump(2)  # type: ignore[arg-type]


def test_the_slowest_locks_come_first(fresh: Backend, fresh_redis: RedisServer) -> None:
    context = connected(fresh.context(timer=fresh.timer()))
    quick = context.lock("quick", timeout=9.0, renew_every=0.2)
    slow = context.lock("slow", timeout=60.0)
    slow.acquire()
    quick.acquire()
    with hung(fresh_redis):
        eventually(lambda: context.stats().overdue == 1)
        found = state(context._engine, 5)
        text = dumped(context._engine)
    assert [lock["name"] for lock in found["locks"]] == ["quick", "slow"]
    assert [lock["overdue"] for lock in found["locks"]] == [True, False]
    assert found["locks"][0]["late_s"] > 0
    assert "overdue, " in text
    assert ", late by " in text
    eventually(lambda: context.stats().overdue == 0)
    context.release_many([quick, slow])


def test_the_state_is_json_and_bounded(labelled: LockContext, label: str) -> None:
    locks = labelled.acquire_many([f"{number}" for number in range(20)])
    found = json.loads(json.dumps(state(labelled._engine, 7), allow_nan=False))
    assert (found["label"], found["pid"], found["stats"]["held"]) == (label, os.getpid(), 20)
    assert [lock["name"] for lock in found["locks"]] == [str(number) for number in range(7)]
    assert found["time_left"]["min"] is None
    assert found["health"]["ok"] is True
    assert state(labelled._engine, 0)["locks"] == []
    labelled.release_many(locks.values())


class Changing(Held):
    """What is held, which changes while it is read first: without a GIL another thread may do that."""

    looks = 0

    def entries(self, most: int | None = None) -> list[Lease | Rows]:
        self.looks += 1
        if self.looks == 1:
            raise RuntimeError("dictionary changed size during iteration")
        return super().entries(most)


def test_a_change_of_what_is_held_during_a_look_does_not_end_it(labelled: LockContext) -> None:
    engine = labelled._engine
    with labelled.lock("held"):
        for look in (lambda: state(engine, 5)["locks"][0]["name"], lambda: engine.held_locks(5)[0].name):
            before, engine.leases.held = engine.leases.held, Changing()
            engine.leases.held.add(before.leases())
            assert look() == "held"
