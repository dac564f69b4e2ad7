"""The record: whole entries or none, at whatever byte a process is killed; and only of locks that may be released."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lock_types.test_encoded_shortcuts import TYPES as ALL_TYPES
from tests.support.background import in_a_fork
from wheel_lock.keeper import entries
from wheel_lock.keeper import record as records
from wheel_lock.keeper.entries import BLOCK, ENTRY, REGIONS, read_record
from wheel_lock.keeper.record import RELEASES, Record
from wheel_lock.lease import NO_OWNER, Extras, Lease, State
from wheel_lock.lock_types import EVERLASTING, EXCLUSIVE, FENCED, REENTRANT
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.exclusive import EVERLASTING_CALLER_TOKEN, WITH_CALLER_TOKEN
from wheel_lock.protocol.resp import bulk_string, lease_args
from wheel_lock.rows import Rows

UNRECORDED = (EVERLASTING, EVERLASTING_CALLER_TOKEN, *WITH_CALLER_TOKEN.values())
TYPES = [lock_type for lock_type in ALL_TYPES if lock_type not in UNRECORDED]


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


def test_leases_that_nobody_has_looked_at_are_a_block_without_being_made() -> None:
    record, leases = Record(overflow), [new_lease(b"n%d" % number) for number in range(40)]
    body = b"".join(lease.lease_args for lease in leases)
    rows = Rows(tuple(lease.name for lease in leases), body, leases[0].group, NO_OWNER, Extras())
    record.begin(rows)
    record.begin(rows)
    record._sweep(in_blocks=True)
    assert not rows.made
    assert read_record(record.file) == list(map(expected, leases))
    record.end(rows[:-1])
    assert read_record(record.file) == [expected(rows[-1])]
    record.end(rows)
    assert record.empty


def test_each_script_of_a_record_has_the_form_for_one_lease() -> None:
    for release in RELEASES:
        assert release.script.single is not None
    for lock_type in TYPES:
        call = lock_type.release_many([new_lease(b"a", lock_type)])
        assert call.script is not None
        assert call.script.single is not None
        assert call.arguments == call.script.single.arguments


@pytest.mark.parametrize("lock_type", UNRECORDED, ids=lambda lock_type: lock_type.name)
def test_locks_that_outlive_their_holders_or_may_be_others_are_never_recorded(lock_type: LockType) -> None:
    record = Record(overflow)
    record.begin([new_lease(b"a", lock_type)])
    assert read_record(record.file) == []


def test_entries_of_all_sizes_come_and_go() -> None:
    chance, record, live = random.Random(7), Record(overflow), list[Lease]()
    for _ in range(20):
        lock_type = chance.choice(TYPES)
        some = [new_lease(b"n" * chance.randint(1, 512), lock_type) for _ in range(50)]
        for begun in (some[:20], some):
            record.begin(begun)
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

    def pack(self, size: int, memory: object, at: int, *values: object) -> None:
        self[at : at + size - 1] = struct.pack(f"{ENTRY.format}{size - 1 - ENTRY.size}s", *values)

    def close(self) -> None:
        self._memory.close()


def cut(record: Record, cut_after: int, chance: random.Random) -> None:
    """Have what is written to a record from now on cut after some bytes."""
    memory: Any = CutMemory(record._memory, cut_after, chance)
    record._memory = memory
    record._packs = [partial(memory.pack, size) for size, _ in REGIONS]


def is_cut(steps: Callable[[], object]) -> bool:
    try:
        steps()
    except InterruptedError:
        return True
    return False


def test_what_is_to_stay_after_a_close_is_in_no_record() -> None:
    record = Record(overflow)
    record.begin([new_lease(b"a"), new_lease(b"b", REENTRANT)])
    assert len(read_record(record.file)) == 2
    record.clear()
    assert read_record(record.file) == []
    assert record.empty


def test_a_record_that_is_cut_at_any_byte_has_whole_entries_or_none() -> None:
    chance, cut_after, was_cut = random.Random(3), 0, True
    while was_cut:
        record = Record(overflow)
        first, second, third = (new_lease(name) for name in (b"first", b"second", b"third"))
        cut(record, cut_after, chance)
        done: list[tuple[int, int, bytes]] = []
        try:
            record.begin([first])
            done = [expected(first)]
            record.begin([second])
            done = [expected(first), expected(second)]
            record.end([first])
            done = [expected(second)]
            record.begin([third])  # in the place of the first
            was_cut = False
        except InterruptedError:
            pass
        found = read_record(record.file)
        possible = [expected(lease) for lease in (first, second, third)]
        assert all(entry in possible for entry in found)
        assert all(entry in found for entry in done)
        cut_after += 1
    assert cut_after > 150


@pytest.fixture
def small_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (entries, records):
        monkeypatch.setattr(module, "REGIONS", ((160, 128), (320, 64), (4096, 2), (4096, 4)))


def test_what_finds_no_room_is_not_recorded_and_reported(small_regions: None) -> None:
    reports: list[None] = []
    record = Record(lambda: reports.append(None))
    leases = [new_lease(b"n%d" % number) for number in range(130)]
    for lease in leases:
        record.begin([lease])
    assert len(read_record(record.file)) == 128
    assert len(reports) == 2
    record.end(leases[:1])
    record.begin(leases[128:129])
    assert len(reports) == 2
    assert len(read_record(record.file)) == 128


def test_entries_of_leases_that_have_ended_make_room(small_regions: None) -> None:
    record = Record(overflow)
    leases = [new_lease(b"n%d" % number) for number in range(128)]
    for lease in leases:
        record.begin([lease])
    for lease in leases[:5]:
        lease.state = State.LOST
    more = [new_lease(b"m%d" % number) for number in range(5)]
    record.begin(more)
    assert sorted(read_record(record.file)) == sorted(map(expected, [*leases[5:], *more]))


def test_a_block_that_ends_while_its_region_is_swept_ends_once(small_regions: None) -> None:
    reports: list[None] = []
    record, leases = Record(lambda: reports.append(None)), many(40)
    record.begin(leases)
    for number in range(125):
        record.begin([new_lease(b"m%d" % number)])
    for lease in leases[:8]:  # which are in doubt, so that they have entries
        lease.state = State.LOST
    record.end(leases[8:39])
    assert (len(reports), len(record._slots), record._blocks) == (6, 128, {})


def test_a_full_region_is_not_looked_through_for_each_lease_again(
    small_regions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, looks = Record(lambda: None), list[int]()
    end = record.end
    monkeypatch.setattr(record, "end", lambda leases: (looks.append(1), end(leases)))
    for number in range(128 + 100):
        record.begin([new_lease(b"n%d" % number)])
    assert len(looks) == 1


def test_a_slot_that_another_thread_takes_first_is_not_there(small_regions: None) -> None:
    class Taken(list[Any]):
        def pop(self, *at: Any) -> Any:
            self.clear()
            raise IndexError

    reports: list[None] = []
    record, leases = Record(lambda: reports.append(None)), [new_lease(b"n%d" % number) for number in range(129)]
    record._free[0] = Taken()
    for lease in leases[:128]:
        record.begin([lease])
    leases[0].state = State.LOST
    record.begin(leases[128:])
    assert len(reports) == 1


def many(count: int, lock_type: LockType = EXCLUSIVE) -> list[Lease]:
    return [new_lease(b"n%d" % number, lock_type) for number in range(count)]


def found_in(record: Record) -> list[tuple[int, int, bytes]]:
    return sorted(set(read_record(record.file)))


def all_of(leases: Iterable[Lease]) -> list[tuple[int, int, bytes]]:
    return sorted(map(expected, leases))


@pytest.mark.parametrize("lock_type", [EXCLUSIVE, FENCED], ids=lambda lock_type: lock_type.name)
def test_what_is_begun_in_bulk_is_one_entry_until_few_are_left(lock_type: LockType) -> None:
    record, leases = Record(overflow), many(500, lock_type)
    record.begin(leases)
    record.begin(leases)
    record.begin(leases[:1])
    assert read_record(record.file) == [expected(lease) for lease in leases]
    assert record.longest_s == 30.0
    (block,) = record._blocks
    record.end(leases[:375])
    assert found_in(record) == all_of(leases)  # tokens too many are harmless
    assert record._blocks
    record.end(leases[375:376])
    assert not record._blocks
    assert found_in(record) == all_of(leases[376:])
    record.end(leases)
    assert record.empty
    assert read_record(record.file) == []
    record.begin(leases)
    assert [block.slot for block in record._blocks] == [block.slot]  # it is used again


def test_a_block_ends_with_its_last_lease() -> None:
    record, leases = Record(overflow), many(64)
    record.begin(leases)
    record.end(leases)
    assert record.empty
    assert (read_record(record.file), record.longest_s) == ([], 0.0)


def test_the_token_of_an_exported_lease_is_in_no_entry() -> None:
    record, leases = Record(overflow), many(100)
    record.begin(leases)
    record.hand_over(leases[7])
    assert found_in(record) == all_of(lease for lease in leases if lease is not leases[7])
    record.hand_over(leases[8])
    assert found_in(record) == all_of([*leases[:7], *leases[9:]])


def test_a_block_that_is_cut_at_any_byte_loses_no_lease_that_is_held() -> None:
    leases, chance, cuts, cut_after = many(32), random.Random(5), 0, 0
    while True:
        record = Record(overflow)
        record.begin(leases)
        cut(record, cut_after, chance)
        was_cut = is_cut(partial(record.hand_over, leases[3]))
        found, held = found_in(record), all_of(lease for lease in leases if lease is not leases[3])
        assert [entry for entry in found if entry != expected(leases[3])] == held
        if not was_cut:
            assert found == held
            break
        record._memory, record._packs = record._memory._memory, Record(overflow)._packs  # type: ignore[attr-defined]
        record.hand_over(leases[3])  # behind an exception in the library's own code
        assert found_in(record) == held
        for lease in leases:
            lease.recorded = None
        cuts, cut_after = cuts + 1, cut_after + chance.randint(1, 60)
    assert cuts > 50


def test_a_block_that_is_cut_while_it_is_written_is_whole_or_none() -> None:
    chance, leases, cut_after, found = random.Random(6), many(40), 0, list[tuple[int, int, bytes]]()
    while not found:
        record = Record(overflow)
        cut(record, cut_after, chance)
        is_cut(partial(record.begin, leases))
        found = read_record(record.file)
        for lease in leases:
            lease.recorded = None
        cut_after += 7
    assert found == [expected(lease) for lease in leases]
    assert cut_after > 1000


def test_what_suits_no_block_has_entries_of_its_own() -> None:
    record = Record(overflow)
    for leases in (many(31), many(50, REENTRANT), [*many(40), new_lease(b"{tag}")]):
        record.begin(leases)
        assert sorted(read_record(record.file)) == all_of(leases)
        assert not record._blocks
        record.end(leases)
    some = many(100)
    record.begin(some[:3])
    record.begin(some)  # the rest of a try that was sent in parts
    assert sorted(read_record(record.file)) == all_of(some)


def test_a_block_that_does_not_fit_is_cut_in_halves() -> None:
    record = Record(overflow)
    leases = [new_lease(b"%0999d" % number) for number in range(500)]
    record.begin(leases)
    assert len(record._blocks) == 8  # and halves that are too small for one
    assert sorted(read_record(record.file)) == all_of(leases)
    record.end(leases)
    assert record.empty


def test_a_full_region_of_blocks_has_single_entries_instead(small_regions: None) -> None:
    record = Record(overflow)
    blocks = [[new_lease(b"%d:%d" % (number, lease)) for lease in range(32)] for number in range(5)]
    for leases in blocks:
        record.begin(leases)
    assert len(record._blocks) == 4
    for lease in blocks[0]:
        lease.state = State.LOST
    more = many(32)
    for _ in range(4):  # after as many as there are slots it is looked at again
        record.end(more)
        record.begin(more)  # at last in the place of the lost ones
    assert len(record._blocks) == 4
    assert found_in(record) == all_of([lease for leases in blocks[1:] for lease in leases] + more)
    record.clear()
    assert read_record(record.file) == []


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        (b"$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd", 1),
        (b"$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n", 1),
        (b"$1\r\na\r\n$1\r\nb\r\n$x\r\nc\r\n$1\r\nd\r\n", 1),
        (b"$1\r\na\r\n$-9\r\nb\r\n", 0),
        (b"$999999999999\r\na\r\n$1\r\nb\r\n", 0),
        (b"\xff" * 50, 0),
        (b"", 0),
    ],
)
def test_of_a_malformed_block_is_read_what_is_whole(body: bytes, whole: int) -> None:
    record = Record(overflow)
    at = record._starts[-1]
    record._memory[at : at + 1 + ENTRY.size + len(body)] = bytes([BLOCK]) + ENTRY.pack(len(body), 7) + body
    assert read_record(record.file) == [(1, 7, b"$1\r\na\r\n$1\r\nb\r\n")][:whole]


def test_a_record_of_a_parent_cannot_be_written_by_what_a_fork_has_interrupted() -> None:
    record, lease, leases = Record(overflow), new_lease(b"a"), many(32)
    record.begin([lease])
    record.begin(leases)
    memory = record._memory

    def check() -> None:
        record.leave()
        Record(overflow).end(leases)
        with pytest.raises(ValueError, match="closed"):
            memory[0] = 0

    in_a_fork(check)
    assert read_record(record.file) == [expected(each) for each in (lease, *leases)]


def test_garbage_in_a_record_is_no_entry() -> None:
    record = Record(overflow)
    record._memory[0:160] = bytes([1]) + b"\xff" * 159
    assert read_record(record.file) == []
