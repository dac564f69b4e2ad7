"""Locks of each kind in any sequence of calls by several contexts, against models that fit on a page.

Each context lives by a clock of its own that stands still, so nothing is renewed but when a rule says so. What a call
must return or raise follows from the model alone; the server's keys are read directly after every step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.backend import LONG_S, Backend, Clock
from tests.support.callers import APIS, NewCaller, callers
from tests.support.lock_types import traces, zmembers
from tests.support.waiting import eventually
from wheel_lock import (
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LossReason,
    UpgradeRefused,
    WheelLockError,
)

TIMEOUT_S = 30.0
PARTIES = 3

FREE, HELD, GONE, LOST = "free", "held", "gone", "lost"  # GONE: lost on the server, and not noticed yet
BELIEVED = (HELD, GONE)

parties = st.integers(0, PARTIES - 1)
seconds = st.sampled_from([0.5, 5.0, 60.0])

_numbers = itertools.count()


class Parties:
    """A server, and some threads or tasks, each with a context and a clock of its own.

    Attributes:
        makes: What makes locks for each of them.
    """

    def __init__(self, backend: Backend, new_caller: NewCaller | None) -> None:
        self.backend = backend
        self.view = backend.view
        self.contexts: list[LockContext] = []
        self.clocks: list[Clock] = []
        self.makes: list[Any] = []
        for _ in range(PARTIES):
            context, clock = backend.stepped_context()
            self.contexts.append(context)
            self.clocks.append(clock)
            self.makes.append(context if new_caller is None else new_caller(context).locks)


def outcome(call: Callable[[], object]) -> object:
    """What a call returns, or the class of what it raises."""
    try:
        return call()
    except WheelLockError as error:
        return type(error)


class Machine(RuleBasedStateMachine):
    """What all of them have in common."""

    def __init__(self, parties: Parties) -> None:
        super().__init__()
        self.parties = parties
        self.view = parties.view
        self.name = f"machine:{next(_numbers)}"
        self.begin()

    def begin(self) -> None:
        """Make the locks and the model."""
        raise NotImplementedError

    def noticed(self, party: int) -> None:
        """A party knows of every loss of its locks."""
        raise NotImplementedError

    def crashed(self, party: int) -> None:
        """All that a party holds is gone from the server, and its time is up."""
        raise NotImplementedError

    def end(self) -> None:
        """Let go of everything, so that the next example begins with threads that hold nothing."""
        raise NotImplementedError

    @rule(party=parties)
    def time_passes_and_leases_are_renewed(self, party: int) -> None:
        self.parties.clocks[party].advance(TIMEOUT_S / 2)
        self.noticed(party)

    @rule(party=parties)
    def time_runs_out(self, party: int) -> None:
        self.crashed(party)
        self.parties.clocks[party].leap(2 * TIMEOUT_S)

    def teardown(self) -> None:
        self.end()
        self.view.delete(self.name)


class Slot:
    """One lock object, and what the model knows of its lease."""

    def __init__(self, party: int, lock: Any, permits: int = 1) -> None:
        self.party = party
        self.lock = lock
        self.permits = permits
        self.state = FREE
        self.token: bytes | None = None


class PlainMachine(Machine):
    """Exclusive and fair locks, two objects to a party; semaphores have more than one holder."""

    kind = "lock"
    handed_over = True
    fencing = True

    def begin(self) -> None:
        self.holders: set[Slot] = set()  # on the server
        self.fences: list[int] = []
        self.slots = [Slot(party, self.new(party), 1) for party in range(PARTIES) for _ in range(2)]

    def new(self, party: int) -> Any:
        terms = {"fencing": True} if self.fencing else {}
        return getattr(self.parties.makes[party], self.kind)(self.name, TIMEOUT_S, **terms)

    def limit(self, slot: Slot) -> int:
        return 1

    def noticed(self, party: int) -> None:
        for slot in self.slots:
            if slot.party == party and slot.state is GONE:
                slot.state = LOST

    def crashed(self, party: int) -> None:
        for slot in self.slots:
            if slot.party == party and slot.state in BELIEVED:
                if slot in self.holders:
                    self.remove(slot)
                slot.state = LOST

    def remove(self, slot: Slot) -> None:
        self.view.delete(self.name)
        self.holders.discard(slot)

    @rule(index=st.integers(0, 5))
    def acquire(self, index: int) -> None:
        slot = self.slots[index]
        seen = outcome(lambda: slot.lock.acquire(blocking=False))
        if slot.state in BELIEVED:
            assert seen is LockAlreadyHeld
            return
        granted = len(self.holders) < self.limit(slot)
        assert seen is granted
        if granted:
            slot.state = HELD
            slot.token = slot.lock.token
            self.holders.add(slot)
            if self.fencing:
                assert slot.lock.fence > max(self.fences, default=0)
                self.fences.append(slot.lock.fence)

    def change(self, slot: Slot, call: Callable[[], object], well: object) -> bool:
        """Make a change that only a holder can; whether it could."""
        seen = outcome(call)
        if slot.state is FREE:
            assert seen is LockNotHeld
        elif slot.state is HELD:
            assert seen == well
            return True
        else:
            assert seen is LockLost
            slot.state = LOST
        return False

    @rule(index=st.integers(0, 5))
    def release(self, index: int) -> None:
        slot = self.slots[index]
        if self.change(slot, slot.lock.release, True):
            slot.state = FREE
            self.holders.remove(slot)

    @rule(index=st.integers(0, 5), additional=seconds, replace=st.booleans())
    def extend(self, index: int, additional: float, replace: bool) -> None:
        slot = self.slots[index]
        # A time-to-live that is replaced by less than the steps take in real time would end by itself.
        if self.change(slot, lambda: slot.lock.extend(additional + 30.0, replace), True):
            assert slot.lock.remaining() > additional + 29.0
            slot.lock.reacquire()

    @rule(index=st.integers(0, 5))
    def lose_it_behind_its_back(self, index: int) -> None:
        slot = self.slots[index]
        if slot in self.holders:
            self.remove(slot)
            slot.state = GONE

    @precondition(lambda self: self.handed_over)
    @rule(index=st.integers(0, 5), to=st.integers(0, 5))
    def hand_over(self, index: int, to: int) -> None:
        giver, taker = self.slots[index], self.slots[to]
        if giver.state is not HELD or taker.state in BELIEVED:
            return
        fence = giver.lock.fence
        text = giver.lock.export()
        taker.lock = self.parties.makes[taker.party].adopt(text)
        assert outcome(lambda: self.parties.makes[giver.party].adopt(text)) is LockLost
        giver.state, taker.state = FREE, HELD
        taker.token = taker.lock.token
        assert taker.lock.fence == fence
        self.holders = {taker}

    @invariant()
    def what_is_said_is_true(self) -> None:
        for slot in self.slots:
            assert slot.lock.is_held is (slot.state in BELIEVED)
            assert (slot.lock.lost is not None) is (slot.state is LOST)
            assert (slot.lock.remaining() > 0) is (slot.state in BELIEVED)
        assert self.tokens() == {slot.token for slot in self.holders}

    @rule(index=st.integers(0, 5))
    def ask(self, index: int) -> None:
        slot = self.slots[index]
        assert slot.lock.locked() is (len(self.holders) >= self.limit(slot))
        assert slot.lock.owned() is (slot in self.holders)

    def tokens(self) -> set[bytes]:
        value: Any = self.view.get(self.name)
        return set() if value is None else {value}

    def end(self) -> None:
        for slot in self.slots:
            if slot.state in BELIEVED:
                outcome(slot.lock.release)


class FairMachine(PlainMachine):
    kind = "fair_lock"


class SemaphoreMachine(PlainMachine):
    """With a number of permits of each object's own, and one that may be set for all."""

    kind = "semaphore"
    handed_over = False
    fencing = False

    def begin(self) -> None:
        self.permits: int | None = None
        super().begin()
        for number, slot in enumerate(self.slots):
            slot.permits = 1 + number % 3
            slot.lock = self.parties.makes[slot.party].semaphore(self.name, slot.permits, TIMEOUT_S)

    def new(self, party: int) -> Any:
        return None

    def limit(self, slot: Slot) -> int:
        return self.permits or slot.permits

    def remove(self, slot: Slot) -> None:
        assert slot.token is not None
        self.view.zrem(self.name, slot.token)
        self.holders.discard(slot)

    @rule(index=st.integers(0, 5), permits=st.none() | st.integers(1, 4))
    def set_permits(self, index: int, permits: int | None) -> None:
        self.slots[index].lock.set_permits(permits)
        self.permits = permits

    def tokens(self) -> set[bytes]:
        return set(zmembers(self.parties.backend, self.name))

    def end(self) -> None:
        self.slots[0].lock.set_permits(None)
        super().end()


class ReentrantMachine(Machine):
    """Two objects to a party are one lock, by a name as text and as bytes. (With readers: what is said of writers.)"""

    def begin(self) -> None:
        self.members: dict[int, str] = {}  # on the server: r or w of each party
        self.alone = [0] * PARTIES
        self.shared = [0] * PARTIES
        self.states = [FREE] * PARTIES
        self.tokens: list[bytes | None] = [None] * PARTIES
        self.fences = [0] * PARTIES
        names = (self.name, self.name.encode())
        self.writers = [[self.writer(context, name) for name in names] for context in self.parties.makes]

    def writer(self, context: Any, name: str | bytes) -> Any:
        return context.reentrant_lock(name, TIMEOUT_S, fencing=True)

    def noticed(self, party: int) -> None:
        if self.states[party] is GONE:
            self.states[party] = LOST

    def crashed(self, party: int) -> None:
        if self.states[party] in BELIEVED:
            self.remove(party)
            self.states[party] = LOST

    def remove(self, party: int) -> None:
        if self.members.pop(party, None):
            self.remove_from_server(party)

    def remove_from_server(self, party: int) -> None:
        self.view.delete(self.name)

    def on_server(self) -> set[bytes]:
        fields: Any = self.view.hgetall(self.name)
        assert set(fields.values()) <= {b"1"}
        return set(fields)

    def held(self, party: int) -> int:
        return self.alone[party] + self.shared[party]

    def count_down(self, party: int, seen: object) -> None:
        """Check one release that is not a swap, and has been counted."""
        last = self.held(party) == 0
        if self.states[party] is LOST or (last and self.states[party] is GONE):
            assert seen is LockLost
        else:
            assert seen is last
            if last:
                del self.members[party]
        if last:
            self.states[party] = FREE

    @rule(party=parties, which=st.integers(0, 1))
    def write(self, party: int, which: int) -> None:
        lock = self.writers[party][which]
        seen = outcome(lambda: lock.acquire(blocking=False))
        if self.held(party):
            if self.alone[party] == 0:
                assert seen is UpgradeRefused
            elif self.states[party] is LOST:
                assert seen is LockLost
            else:
                assert seen is True
                assert lock.fence == self.fences[party]
                self.alone[party] += 1
            return
        assert seen is (not self.members)
        if seen:
            self.members[party], self.states[party], self.alone[party] = "w", HELD, 1
            self.tokens[party] = lock.token
            assert lock.fence > max(self.fences)
            self.fences[party] = lock.fence

    @rule(party=parties, which=st.integers(0, 1))
    def end_writing(self, party: int, which: int) -> None:
        seen = outcome(self.writers[party][which].release)
        if self.alone[party] == 0:
            assert seen is LockNotHeld
            return
        swaps = self.alone[party] == 1 and self.shared[party] > 0 and self.states[party] in BELIEVED
        self.alone[party] -= 1
        if not swaps:
            self.count_down(party, seen)
        elif self.states[party] is HELD:
            assert seen is True
            self.now_reads(party)
        else:
            assert seen is LockLost
            self.states[party] = LOST

    def now_reads(self, party: int) -> None:
        raise AssertionError("there are no readers")

    def extend(self, party: int, lock: Any, count: int, additional: float) -> None:
        seen = outcome(lambda: lock.extend(additional))
        if not count:
            assert seen is LockNotHeld
        elif self.states[party] is HELD:
            assert seen is True
            lock.reacquire()
        else:
            assert seen is LockLost
            self.states[party] = LOST

    @rule(party=parties, which=st.integers(0, 1), additional=seconds)
    def extend_writing(self, party: int, which: int, additional: float) -> None:
        self.extend(party, self.writers[party][which], self.alone[party], additional)

    @rule(party=parties)
    def lose_it_behind_its_back(self, party: int) -> None:
        if party in self.members:
            self.remove(party)
            self.states[party] = GONE

    @invariant()
    def what_is_said_is_true(self) -> None:
        for party, writers in enumerate(self.writers):
            for writer in writers:
                assert writer.count == self.alone[party]
                assert writer.is_held is (self.states[party] in BELIEVED and self.alone[party] > 0)
        assert self.on_server() == {self.tokens[party] for party in self.members}

    def end(self) -> None:
        for writers in self.writers:
            while writers[0].count:
                outcome(writers[0].release)


class ReadWriteMachine(ReentrantMachine):
    """Both halves of a party are one hold."""

    def begin(self) -> None:
        super().begin()
        self.readers = [self.reader(context) for context in self.parties.makes]

    def reader(self, context: Any) -> Any:
        return context.rw_lock(self.name, TIMEOUT_S).read()

    def writer(self, context: Any, name: str | bytes) -> Any:
        return context.rw_lock(name, TIMEOUT_S, fencing=True).write()

    def remove_from_server(self, party: int) -> None:
        token = self.tokens[party]
        assert token is not None
        self.view.zrem(self.name, token)

    def on_server(self) -> set[bytes]:
        found = set(zmembers(self.parties.backend, self.name))
        assert sorted(member[:1].decode() for member in found) == sorted(self.members.values())
        return found

    @rule(party=parties, fresh=st.booleans())
    def read(self, party: int, fresh: bool) -> None:
        if fresh:
            self.readers[party] = self.reader(self.parties.makes[party])
        lock = self.readers[party]
        seen = outcome(lambda: lock.acquire(blocking=False))
        if self.held(party):
            if self.states[party] is LOST:
                assert seen is LockLost
                return
            assert seen is True
            self.shared[party] += 1
            return
        assert seen is ("w" not in self.members.values())
        if seen:
            self.members[party], self.states[party], self.shared[party] = "r", HELD, 1
            self.tokens[party] = lock.token

    @rule(party=parties)
    def end_reading(self, party: int) -> None:
        seen = outcome(self.readers[party].release)
        if self.shared[party] == 0:
            assert seen is LockNotHeld
            return
        self.shared[party] -= 1
        self.count_down(party, seen)

    @rule(party=parties, which=st.integers(0, 1))
    def downgrade(self, party: int, which: int) -> None:
        seen = outcome(self.writers[party][which].downgrade)
        if self.alone[party] == 0:
            assert seen is LockNotHeld
        elif self.states[party] is LOST:
            assert seen is LockLost
        elif self.alone[party] > 1:
            assert seen is LockAlreadyHeld
        elif self.states[party] is GONE:
            assert seen is LockLost
            self.states[party] = LOST
        else:
            self.readers[party] = seen
            self.alone[party] = 0
            self.shared[party] += 1
            self.now_reads(party)

    def now_reads(self, party: int) -> None:
        self.members[party] = "r"
        assert self.tokens[party] != self.readers[party].token
        self.tokens[party] = self.readers[party].token

    @rule(party=parties, additional=seconds)
    def extend_reading(self, party: int, additional: float) -> None:
        self.extend(party, self.readers[party], self.shared[party], additional)

    @rule(party=parties)
    def ask(self, party: int) -> None:
        kinds = list(self.members.values())
        assert self.readers[party].locked() is ("r" in kinds)
        assert self.writers[party][0].locked() is ("w" in kinds)
        if self.shared[party]:
            assert self.readers[party].owned() is (party in self.members)

    @invariant()
    def what_is_said_of_readers_is_true(self) -> None:
        for party, reader in enumerate(self.readers):
            assert reader.count == self.shared[party]
            assert reader.is_held is (self.states[party] in BELIEVED and self.shared[party] > 0)
            if self.states[party] is LOST and self.shared[party]:
                assert isinstance(reader.lost, LossReason)

    def end(self) -> None:
        for reader in self.readers:
            while reader.count:
                outcome(reader.release)
        super().end()


@pytest.mark.slow
@pytest.mark.servers("real", "embedded")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("machine", [PlainMachine, FairMachine, SemaphoreMachine, ReentrantMachine, ReadWriteMachine])
def test_a_lock_of_each_kind_does_what_its_model_says(backend: Backend, machine: type[Machine], api: str) -> None:
    with callers(api) as new_caller:
        # Calls of tasks come from another thread, which takes its time: where threads are concerned it is the test's own.
        parties = Parties(backend, None if api == "threads" else new_caller)

        def new() -> Machine:
            return machine(parties)

        run_state_machine_as_test(
            new,  # type: ignore[arg-type]  # anything that makes one will do
            settings=settings(
                max_examples=(6 if api == "threads" else 3) if backend.is_real else 1,  # the embedded server is slow
                stateful_step_count=50,
                suppress_health_check=list(HealthCheck),
            ),
        )
        # A clock that has leapt has woken no timer's thread: each finds out in its time.
        eventually(lambda: all(context.stats().held == 0 for context in parties.contexts), LONG_S)
        assert traces(backend, "machine:") == []
