"""Locks of a bulk acquire that nobody looks at: they are kept, lost and released without leases and lock objects."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from tests.engine.rig import FINE, GONE, TAKEN, Rig, array
from wheel_lock.engine.future import Future
from wheel_lock.engine.leases import Held
from wheel_lock.engine.requests import bulk_operations
from wheel_lock.engine.requests.bulk_operations import Sweep
from wheel_lock.errors import LossReason
from wheel_lock.lease import NO_OWNER, Extras, Lease, ThreadOwner
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.locks.bulk import BulkAcquire, leases_to_release, let_go_of, read_all
from wheel_lock.observe import LostEvent
from wheel_lock.options import lock_options
from wheel_lock.protocol.resp import lease_args
from wheel_lock.rows import Rows
from wheel_lock.sync.lock import Lock

NAMES = [f"n{number}" for number in range(20)]


class Many:
    """Locks of one call, by default twenty in two batches. ``locks`` is what the caller gets."""

    def __init__(self, rig: Rig, names: Sequence[str] = NAMES) -> None:
        self.rig = rig
        self.losses: list[LostEvent] = []
        self.made: list[str] = []
        options = lock_options(3.0, thread_local=False)
        future: Future[None] = Future(lambda: None)

        def new_lock(name: str) -> Lock:
            self.made.append(name)
            return Lock(rig.engine, EXCLUSIVE, name, options, self.losses.append)

        bulk = BulkAcquire(rig.engine, names, options, new_lock, False, future, None)
        list(bulk.submit())
        rig.go_on(0.0, rig.agree)
        assert future.done
        self.made.clear()  # one of them is a pattern
        self.locks = bulk.outcome()

    @property
    def rows(self) -> list[Rows]:
        return [entry for entry in self.rig.engine.leases.held.entries() if isinstance(entry, Rows)]

    @property
    def looked_at(self) -> bool:
        return bool(self.made) or any(rows.made for rows in self.rows) or self.rig.stats().held != 20


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(batch_size=10) as rig:
        yield rig


@pytest.fixture
def many(rig: Rig) -> Many:
    return Many(rig)


def test_they_are_renewed(rig: Rig, many: Many) -> None:
    rig.go_on(5.0, rig.agree)
    assert rig.stats().renewed >= 60
    assert not many.looked_at
    assert {lock.renewals for lock in rig.engine.held_locks()} == {rig.stats().renewed // 20}
    assert [lock.name for lock in rig.engine.held_locks()] == NAMES
    assert [lock.name for lock in rig.engine.held_locks(3)] == NAMES[:3]
    assert not many.looked_at


def test_one_that_is_gone_is_lost_and_the_others_of_its_rows_go_on(rig: Rig, many: Many) -> None:
    while "renew" not in (whats := rig.whats()):
        rig.go_on(0.1)
    rig.say(array(3, GONE), *[FINE] * (len(whats) - 1))
    rig.go_on(5.0, rig.agree)
    rig.drain()
    [event] = many.losses
    assert event.reason is LossReason.KEY_GONE
    assert [name for name, lock in many.locks.items() if lock is None or not lock.is_held] == [event.name]
    assert rig.stats().held == 19


def test_after_a_reconnection_each_rows_are_confirmed_in_one_call(rig: Rig, many: Many) -> None:
    rig.go_on(0.1, rig.agree)
    rig.reconnect()
    commands = rig.server.take()
    assert [(command.what, command.names) for command in commands] == [("renew", NAMES[:10]), ("renew", NAMES[10:])]
    rig.say(FINE, FINE)
    assert not many.looked_at
    rig.go_on(3.0, rig.agree)
    assert many.losses == []
    assert not many.looked_at


def test_what_was_confirmed_on_the_new_connection_is_not_confirmed_again(rig: Rig, many: Many) -> None:
    rig.reconnect()
    rig.agree()
    rig.go_on(0.2)
    assert rig.whats() == []


def test_silence_loses_all_of_them_by_the_deadline(rig: Rig, many: Many) -> None:
    until = rig.engine.held_locks()[0].remaining_s + rig.now
    rig.be_silent(3.5)
    rig.drain()
    assert sorted(event.name for event in many.losses) == sorted(NAMES)
    assert all(event.at <= until for event in many.losses)
    assert not any(lock is not None and lock.is_held for lock in many.locks.values())


def test_they_are_released_without_lock_objects(rig: Rig, many: Many) -> None:
    given: list[Any] = []
    leases, lost, error = leases_to_release(rig.engine, read_all(rig.engine, many.locks.values(), given))
    assert (lost, error, many.made) == ({}, None, [])
    released = rig.release_many(leases)
    assert [command.names for command in rig.server.agree()] == [NAMES[:10], NAMES[10:]]
    rig.turn()
    assert released.done
    assert rig.stats().held == 0
    assert not any(lock is not None and lock.is_held for lock in many.locks.values())


def test_an_interrupted_release_lets_go_of_them(rig: Rig, many: Many) -> None:
    let_go_of(rig.engine, many.locks.values(), [], None)
    rig.go_on(0.0, rig.agree)
    assert (rig.stats().held, rig.stats().released) == (0, 20)


def test_a_release_looks_at_those_of_which_one_was_lost(rig: Rig, many: Many) -> None:
    rig.engine.leases.mark_lost([many.rows[0][1]], LossReason.KEY_GONE)
    leases, lost, error = leases_to_release(rig.engine, read_all(rig.engine, many.locks.values(), []))
    assert (len(leases), lost, error) == (19, {"n1": LossReason.KEY_GONE}, None)
    assert many.made == NAMES[:10]


def test_a_close_releases_them(rig: Rig, many: Many) -> None:
    closed = rig.close_engine()
    assert [command.names for command in rig.server.agree()] == [NAMES[:10], NAMES[10:]]
    rig.turn()
    assert closed.done
    assert {event.reason for event in many.losses} <= {LossReason.CONTEXT_CLOSED}


@pytest.mark.filterwarnings("ignore:the lock .* was abandoned:ResourceWarning")
def test_those_that_nobody_keeps_are_abandoned_with_their_dict(rig: Rig, many: Many) -> None:
    kept = many.locks["n12"]
    del many.locks
    rig.turn()
    assert [lock.name for lock in rig.engine.held_locks()] == ["n12"]
    rig.drain()
    assert {event.reason for event in many.losses} == {LossReason.ABANDONED}
    assert sorted(event.name for event in many.losses) == sorted(name for name in NAMES if name != "n12")
    assert kept is not None


@pytest.mark.filterwarnings("ignore:the lock .* was abandoned:ResourceWarning")
def test_other_locks_are_renewed_while_very_many_are_abandoned(rig: Rig, many: Many) -> None:
    del many.locks
    rig.timer.turn()
    assert rig.stats().held == 10


def test_a_close_releases_none_that_was_lost_before(rig: Rig, many: Many) -> None:
    rig.engine.leases.mark_lost([many.rows[0][1]], LossReason.KEY_GONE)
    rig.close_engine()
    assert sorted(name for command in rig.server.agree() for name in command.names) == sorted({*NAMES} - {"n1"})


def test_a_close_without_a_release_makes_the_leases_a_part_in_each_turn(
    rig: Rig, many: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_operations, "_LOSSES_A_TURN", 10)
    first, second = many.rows
    Sweep(rig.engine.leases, Future(lambda: None)).stop()
    assert (first.made, second.made) == (True, False)
    rig.turn()
    assert rig.stats().held == 0


@pytest.mark.parametrize("names", [["alone"], NAMES[:11]])
def test_a_batch_of_one_lock_leaves_nothing_behind(rig: Rig, names: list[str]) -> None:
    many = Many(rig, names)
    leases, _, _ = leases_to_release(rig.engine, read_all(rig.engine, many.locks.values(), []))
    rig.release_many(leases)
    rig.server.agree()
    assert (rig.engine.leases.held.entries(), rig.stats().held) == ([], 0)


def test_leases_that_another_thread_makes_meanwhile_are_in_the_block(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[Lease]] = []
    add = Held.add

    def add_and_look(held: Held, leases: Sequence[Lease]) -> None:
        add(held, leases)
        assert isinstance(leases, Rows)
        made.append(leases._new_leases())  # by a thread that goes on when the grant is over

    monkeypatch.setattr(Held, "add", add_and_look)
    many = Many(rig)
    for rows, leases in zip(many.rows, made, strict=True):
        rows._made.setdefault(True, leases)
    released = rig.release(many.rows[0][3])
    rig.say(b":1\r\n")
    assert released.done
    rig.server.take()
    renewed: list[str] = []
    rig.go_on(2.0, lambda: renewed.extend(name for command in rig.server.agree() for name in command.names))
    assert sorted(set(renewed)) == sorted(name for name in NAMES if name != "n3")


def test_the_number_of_held_leases_is_right_at_each_step_of_a_release(rig: Rig, many: Many) -> None:
    seen: list[int] = []

    class Seen(Held):
        def pop(self, *arguments: Any) -> Any:
            popped = super().pop(*arguments)
            seen.append(len(self))  # on another thread
            return popped

    held = Seen()
    for rows in many.rows:
        held.add(rows)
    for lease in list(held):
        held.remove(lease)
    assert seen == [10, 0]


def test_one_that_is_asked_for_changes_nothing_for_the_others(rig: Rig, many: Many) -> None:
    lock = many.locks["n3"]
    assert lock is not None
    assert lock.is_held
    assert many.made == NAMES[:10]
    assert many.locks["n3"] is lock
    lease = many.rows[0][3]
    assert lock._own_lease() is lease
    released = rig.release(lease)
    assert rig.server.one("release").names == ["n3"]
    rig.say(b":1\r\n")
    assert released.done
    assert [lease.name for lease in rig.engine.held] == [name for name in NAMES if name != "n3"]
    assert [lease.name for lease in reversed(rig.engine.leases.held)] == [name for name in NAMES[::-1] if name != "n3"]
    rig.go_on(3.0, rig.agree)
    assert rig.stats().held == 19
    assert many.losses == []


def test_own_leases_are_found_among_them_without_looking_at_others(rig: Rig, many: Many) -> None:
    wire = lease_args(b"n15", many.rows[1]._new_leases()[5].token)
    assert [lease.name for lease in rig.engine.own([wire])] == ["n15"]
    assert not many.rows[0].made


def test_in_single_key_mode_each_lease_has_its_own_call() -> None:
    with Rig(batch_size=10, declare_keys=True) as rig:
        many = Many(rig)
        assert rig.stats().held == 20
        assert [name for name, lock in many.locks.items() if lock is not None and lock.is_held] == NAMES


def test_one_that_is_alone_in_its_batch_leaves_nothing_behind(rig: Rig) -> None:
    many = Many(rig, NAMES[:11])
    released = rig.release_many(leases_to_release(rig.engine, read_all(rig.engine, many.locks.values(), []))[0])
    rig.go_on(0.0, rig.agree)
    assert released.done
    assert (rig.engine.held, rig.engine.leases.held.entries(), rig.stats().held) == ([], [], 0)


@pytest.mark.parametrize("refused", [False, True])
def test_an_acquire_that_ends_makes_few_leases_a_turn_and_none_that_were_not_sent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    monkeypatch.setattr(bulk_operations, "LEASES_A_TURN", 10)
    options, future = lock_options(3.0, thread_local=False), Future[None](lambda: None)
    new_lock = partial(Lock, rig.engine, EXCLUSIVE, options=options, on_lost=None)
    bulk = BulkAcquire(rig.engine, [f"n{number}" for number in range(400)], options, new_lock, True, future, None)
    list(bulk.submit())
    rig.turn()
    in_flight = bulk_operations.AcquireMany.most_in_flight
    assert rig.whats() == ["acquire_many"] * in_flight
    rig.server.say(*[FINE] * (in_flight - 1), array(1, TAKEN) if refused else FINE)
    rig.timer.turn()
    made = [0]
    if not refused:
        bulk.give_up()  # with these calls in flight
    for _ in range(50):
        rig.server.agree()
        rig.timer.turn()
        made.append(sum(rows.made for rows in bulk._rows))
    assert max(after - before for before, after in itertools.pairwise(made)) <= in_flight + 1  # and one part
    assert (rig.stats().held, made[-1] < 40) == (0, True)


def new_rows(owner: Any = NO_OWNER) -> Rows:
    group: Any = None
    return Rows(("a", b"b"), lease_args(b"a", b"1") + lease_args(b"b", b"22"), group, owner, Extras())


def test_leases_are_made_of_rows_once_whoever_comes_between() -> None:
    rows = new_rows()
    plain, inner = rows._new_leases, list[list[Lease]]()

    class Interrupted(Rows):
        def _new_leases(self) -> list[Lease]:
            leases = plain()
            if not inner:
                inner.append([])
                inner[0] = self.leases
            return leases

    interrupted = Interrupted(rows.names, rows.body, rows.group, rows.owner, rows.extras)
    assert interrupted.leases is inner[0]
    assert [(lease.name, lease.key, lease.token) for lease in interrupted] == [("a", b"a", b"1"), (b"b", b"b", b"22")]


def test_an_owner_that_is_set_while_leases_are_made_is_theirs() -> None:
    heir, rows = ThreadOwner(), new_rows()
    plain = rows._new_leases

    class Interrupted(Rows):
        def _new_leases(self) -> list[Lease]:
            leases = plain()
            self.belong_to(heir)
            return leases

    interrupted = Interrupted(rows.names, rows.body, rows.group, rows.owner, rows.extras)
    assert {lease.owner for lease in interrupted} == {heir}
