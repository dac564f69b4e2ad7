"""The record: whole entries or none, at whatever byte a process is killed; and only of locks that may be released."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from wheel_lock.keeper import entries
from wheel_lock.keeper import record as records
from wheel_lock.keeper.entries import read_record
from wheel_lock.keeper.record import RELEASES, Record
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types import (
    EVERLASTING,
    EXCLUSIVE,
    FAIR,
    FENCED,
    FENCED_FAIR,
    FENCED_REENTRANT,
    FENCED_WRITE,
    READ,
    REENTRANT,
    WRITE,
    semaphore,
)
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.caller_token import WITH_CALLER_TOKEN
from wheel_lock.protocol.resp import bulk_string, lease_args

TYPES = (EXCLUSIVE, FENCED, REENTRANT, FENCED_REENTRANT, FAIR, FENCED_FAIR, READ, WRITE, FENCED_WRITE, semaphore(3))


def new_lease(name: bytes, lock_type: LockType = EXCLUSIVE, ttl_ms: int = 30_000) -> Lease:
    group: Any = SimpleNamespace(lock_type=lock_type, timeout_ms=ttl_ms, timeout_s=ttl_ms / 1000)
    return Lease(name, lease_args(name, lock_type.token(b"host:1:")), group)


def overflow() -> None:
    raise AssertionError("the record is full")


def expected(lease: Lease) -> tuple[int, int, bytes]:
    group: Any = lease.group
    call = group.lock_type.release_many([lease])
    number = max(number for number, release in enumerate(RELEASES, 1) if release.script is call.script)
    if number == 2 and call.body == lease.lease_args + bulk_string(RELEASES[0].channel + b"{%b}" % lease.key):
        return 1, group.timeout_ms, lease.lease_args
    return number, group.timeout_ms, call.body


@pytest.mark.parametrize("lock_type", TYPES, ids=lambda lock_type: lock_type.name)
@pytest.mark.parametrize(
    "name", [b"a", b"{a}b", b"}{", b"x" * 512, bytes(range(256))], ids=["1", "tag", "no tag", "512", "all"]
)
def test_an_entry_is_the_release_of_its_lease(lock_type: LockType, name: bytes) -> None:
    record, lease = Record(overflow), new_lease(name, lock_type)
    record.begin([lease])
    record.begin([lease])
    assert read_record(record.file) == [expected(lease)]
    record.end([lease])
    record.end([lease])
    assert read_record(record.file) == []
    assert record.empty


def test_each_script_of_a_record_has_the_form_for_one_lease() -> None:
    for release in RELEASES:
        assert release.script.single is not None
    for lock_type in TYPES:
        call = lock_type.release_many([new_lease(b"a", lock_type)])
        assert call.script is not None
        assert call.script.single is not None
        assert call.arguments == call.script.single.arguments


@pytest.mark.parametrize("lock_type", [EVERLASTING, *WITH_CALLER_TOKEN.values()], ids=lambda lock_type: lock_type.name)
def test_locks_that_outlive_their_holders_or_may_be_others_are_never_recorded(lock_type: LockType) -> None:
    record = Record(overflow)
    record.begin([new_lease(b"a", lock_type)])
    assert read_record(record.file) == []


def test_entries_of_all_sizes_come_and_go() -> None:
    chance, record, live = random.Random(7), Record(overflow), list[Lease]()
    for _ in range(20):
        some = [new_lease(b"n" * chance.randint(1, 512), chance.choice(TYPES)) for _ in range(50)]
        record.begin(some)
        live += some
        chance.shuffle(live)
        gone, live = live[:40], live[40:]
        record.end(gone)
        assert sorted(read_record(record.file)) == sorted(map(expected, live))


class CutMemory:
    """A memory in which each store is cut: of each, the bytes that were written before the cut come in any order."""

    def __init__(self, memory: Any, cut_after: int, chance: random.Random) -> None:
        self._memory, self._left, self._chance = memory, cut_after, chance

    def __setitem__(self, key: int | slice, value: int | bytes) -> None:
        places = [key] if isinstance(key, int) else list(range(key.start, key.stop))
        data = bytes([value]) if isinstance(value, int) else value
        stores = list(zip(places, data, strict=True))
        self._chance.shuffle(stores)
        for place, byte in stores:
            if self._left == 0:
                raise InterruptedError
            self._left -= 1
            self._memory[place] = byte

    def close(self) -> None:
        self._memory.close()


def test_what_is_to_stay_after_a_close_is_in_no_record() -> None:
    record = Record(overflow)
    record.begin([new_lease(b"a"), new_lease(b"b", REENTRANT)])
    assert len(read_record(record.file)) == 2
    record.clear()
    assert read_record(record.file) == []
    assert record.empty


def test_a_record_that_is_cut_at_any_byte_has_whole_entries_or_none() -> None:
    chance, cut_after, cut = random.Random(3), 0, True
    while cut:
        record = Record(overflow)
        first, second, third = (new_lease(name) for name in (b"first", b"second", b"third"))
        record._memory = CutMemory(record._memory, cut_after, chance)  # type: ignore[assignment]
        done: list[tuple[int, int, bytes]] = []
        try:
            record.begin([first])
            done = [expected(first)]
            record.begin([second])
            done = [expected(first), expected(second)]
            record.end([first])
            done = [expected(second)]
            record.begin([third])  # in the place of the first
            cut = False
        except InterruptedError:
            pass
        found = read_record(record.file)
        possible = [expected(lease) for lease in (first, second, third)]
        assert all(entry in possible for entry in found)
        assert all(entry in found for entry in done)
        cut_after += 1
    assert cut_after > 150


@contextmanager
def small_regions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (entries, records):
        monkeypatch.setattr(module, "REGIONS", ((160, 128), (320, 64), (4096, 2)))
    monkeypatch.setattr(records, "_BYTES", 160 * 128 + 320 * 64 + 4096 * 2)
    yield


def test_what_finds_no_room_is_not_recorded_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[None] = []
    with small_regions(monkeypatch):
        record = Record(lambda: reports.append(None))
        leases = [new_lease(b"n%d" % number) for number in range(130)]
        record.begin(leases)
        assert len(read_record(record.file)) == 128
        assert len(reports) == 2
        record.end(leases[:1])
        record.begin(leases[128:129])
        assert len(reports) == 2
        assert len(read_record(record.file)) == 128


def test_entries_of_leases_that_have_ended_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_regions(monkeypatch):
        record = Record(overflow)
        leases = [new_lease(b"n%d" % number) for number in range(128)]
        record.begin(leases)
        for lease in leases[:5]:
            lease.state = State.LOST
        more = [new_lease(b"m%d" % number) for number in range(5)]
        record.begin(more)
        assert sorted(read_record(record.file)) == sorted(map(expected, [*leases[5:], *more]))


def test_a_record_of_a_parent_cannot_be_written_by_what_a_fork_has_interrupted() -> None:
    record, lease = Record(overflow), new_lease(b"a")
    record.begin([lease])
    memory = record._memory
    pid = os.fork()
    if pid == 0:
        record.leave()
        try:
            memory[0] = 0
        except ValueError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert read_record(record.file) == [expected(lease)]


def test_garbage_in_a_record_is_no_entry() -> None:
    record = Record(overflow)
    record._memory[0:160] = bytes([1]) + b"\xff" * 159
    assert read_record(record.file) == []
