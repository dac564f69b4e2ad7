"""Interruptions while a writer becomes a reader: wherever they strike, and however far the server is by then.

Each test is played once for every place in the library at which the interpreter would run a signal's handler. There the
caller is kept from running while the timer's thread and the server go on, and is interrupted then.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend, Clock, Losses, interrupted, without_collection
from tests.support.background import Background
from tests.support.interruptions import Interruption, Struck, at_every_place
from tests.support.lock_types import NAME, traces, zmembers
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import (
    LockContext,
    LockLost,
    LockTimeout,
    LockUnavailable,
    LossReason,
    ReadLock,
    WriteLock,
)
from wheel_lock.lease import Lease
from wheel_lock.locks.read_write import BaseWriteLock

# An interruption that strikes a finaliser is swallowed by the interpreter: then the program just goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TIMEOUT_S = 60.0  # so what is left behind is there for long
RECONNECTED_S = 2 * LONG_S


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    with without_collection():
        yield


class Situation:
    """A caller who writes and reads, and what happens while he is kept from running."""

    def __init__(self, real: Backend, proxy: TcpProxy, context: LockContext) -> None:
        self.real = real
        self.proxy = proxy
        self.context = context
        self.losses = Losses()

    def held_both_ways(self) -> tuple[WriteLock, ReadLock]:
        """A lock that this thread has acquired for writing and for reading."""
        lock = self.context.rw_lock(NAME, TIMEOUT_S, on_lost=self.losses)
        writer, reader = lock.write(), lock.read()
        writer.acquire()
        reader.acquire()
        return writer, reader

    @property
    def reads(self) -> bool:
        """Whether the server knows of a reader."""
        return any(member.startswith(b"r:") for member in zmembers(self.real))

    @property
    def idle(self) -> bool:
        """Whether the timer's thread has done whatever it was asked for, and waits for no reply."""
        timer, busy = self.context.timer, SimpleQueue[bool]()
        # Asked there, between two messages: in the middle of one it looks idle before it sends, and when it has connected.
        timer.post(lambda: busy.put(timer.busy))
        timer.wake()  # the caller may be kept from running right before he wakes it
        return not busy.get(timeout=LONG_S)

    # -- meanwhile ---------------------------------------------------------------------------------------------------

    def nothing(self) -> None:
        """He is not kept from running."""

    def no_reply(self) -> None:
        """The server does what it was asked for, and its reply is on its way."""
        self.proxy.to_client.delay_s = math.inf
        eventually(lambda: self.reads or self.idle, LONG_S)

    def all_of_it(self) -> None:
        """The server does what it was asked for, and its reply is read."""
        eventually(lambda: self.idle, LONG_S)

    def once_more(self) -> None:
        """The server does what it was asked for, the connection breaks, and the call is repeated."""
        self.no_reply()
        connects = self.context.stats().connects
        self.proxy.cut()
        self.proxy.to_client.delay_s = 0.0
        # Idle is the thread also before it has seen the connection break.
        eventually(lambda: self.context.stats().connects > connects and self.idle, RECONNECTED_S)

    def the_end(self) -> None:
        """The context is closed."""
        self.context.close()

    def all_of_it_and_the_end(self) -> None:
        """The server does what it was asked for, its reply is read, and the context is closed."""
        self.all_of_it()
        self.the_end()

    def beside(self, loop: object, details: object) -> None:
        """It has struck a step of the event loop, and not the task that waits: that goes on waiting for the reply."""
        self.proxy.to_client.delay_s = 0.0

    # -- what is true then -------------------------------------------------------------------------------------------

    def assert_reading(self, writer: Any, reader: Any, where: str) -> None:
        """It is held for reading, and no more for writing, as soon as the server's reply is there."""
        assert (writer.count, reader.count) == (0, 1), where
        assert not writer.is_held, where
        self.proxy.to_client.delay_s = 0.0
        eventually(lambda: reader.is_held, LONG_S, f"he reads on, interrupted at {where}")
        assert reader.lost is None
        assert zmembers(self.real) == [reader.token], where


@pytest.fixture
def situation(real: Backend, proxy: TcpProxy, through_proxy: LockContext) -> Situation:
    return Situation(real, proxy, through_proxy)


MEANWHILE: dict[str, Callable[[Situation], None]] = {
    "nothing": Situation.nothing,
    "no reply": Situation.no_reply,
    "all of it": Situation.all_of_it,
    "once more": Situation.once_more,
}
meanwhiles = pytest.mark.parametrize("meanwhile", MEANWHILE)


def begin_late(monkeypatch: pytest.MonkeyPatch) -> list[Interruption]:
    """Places count from where the change is about to be begun; return where to put the interruption."""
    new_swap, waiting = BaseWriteLock._new_swap, list[Interruption]()

    def count_from_here(self: Any, future: Any) -> Any:
        made = new_swap(self, future)
        if waiting:
            waiting.pop().begin()
        return made

    monkeypatch.setattr(BaseWriteLock, "_new_swap", count_from_here)
    return waiting


faces = pytest.mark.parametrize("face", ["threads", "tasks"])


async def done(outcome: Any) -> Any:
    """What a call of either API has come to."""
    return await outcome if asyncio.iscoroutine(outcome) else outcome


def at_every_place_of(
    situation: Situation, meanwhile: str, play: Callable[[Interruption], Coroutine[Any, Any, None]]
) -> int:
    """Play a coroutine once for each place; return how many there are. Nothing may have been told as lost."""
    places = 0
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(situation.beside)
        runner.run(play(Interruption(-1)))
        for _ in at_every_place(lambda it: runner.run(play(it)), meanwhile=lambda: MEANWHILE[meanwhile](situation)):
            places += 1
    assert situation.losses.all_told() == []
    return places


@faces
@meanwhiles
def test_who_is_interrupted_anywhere_while_he_stops_writing_reads_on(
    situation: Situation, meanwhile: str, face: str
) -> None:
    context: Any = situation.context if face == "threads" else situation.context.asyncio

    async def play(interruption: Interruption) -> None:
        lock = context.rw_lock(NAME, TIMEOUT_S, on_lost=situation.losses)
        writer, reader = lock.write(), lock.read()
        await done(writer.acquire())
        await done(reader.acquire())
        interruption.begin()
        try:
            await done(writer.release())
        except Struck:
            pass
        interruption.end()
        situation.assert_reading(writer, reader, str(interruption.where))
        assert await done(reader.release()) is True
        assert traces(situation.real) == []

    assert at_every_place_of(situation, meanwhile, play) > 20


@pytest.mark.parametrize("again_after", [0, 1, 2, 3])
@meanwhiles
def test_a_second_interruption_of_what_deals_with_the_first_changes_nothing(
    situation: Situation, monkeypatch: pytest.MonkeyPatch, meanwhile: str, again_after: int
) -> None:
    waiting = begin_late(monkeypatch)

    def play(interruption: Interruption) -> None:
        writer, reader = situation.held_both_ways()
        waiting.append(interruption)
        try:
            writer.release()
        except Struck:
            pass
        interruption.end()
        situation.assert_reading(writer, reader, str(interruption.where))
        assert reader.release() is True

    for _ in at_every_place(play, again_after=again_after, meanwhile=lambda: MEANWHILE[meanwhile](situation)):
        pass
    assert situation.losses.all_told() == []


# While the reply is on its way


def release_waits(situation: Situation) -> bool:
    """Whether somebody waits for the release of what is not confirmed yet."""
    return any(swap._releases for swap in list[Any](situation.context._engine.leases.swaps.values()))


def struck_in_flight(situation: Situation, writer: Any) -> None:
    """Interrupt the release of the writer while its reply is on its way."""
    situation.proxy.to_client.delay_s = math.inf
    with interrupted(lambda: situation.reads):
        writer.release()


def test_a_look_at_the_moment_of_the_confirmation_is_no_loss(
    situation: Situation, monkeypatch: pytest.MonkeyPatch
) -> None:
    believed, caller, looks = Lease.is_valid, threading.get_ident(), []

    def believed_and_granted_then(lease: Lease, now: float) -> bool:
        answer = believed(lease, now)
        if threading.get_ident() == caller:
            situation.proxy.to_client.delay_s = 0.0
            eventually(lambda: believed(lease, now), LONG_S)
            looks.append(answer)
        return answer

    writer, reader = situation.held_both_ways()
    struck_in_flight(situation, writer)
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "is_valid", believed_and_granted_then)
        assert not reader.is_held
    assert looks == [False]
    assert reader.is_held
    assert reader.release() is True
    assert situation.losses.all_told() == []


# Where it cannot be kept


@pytest.mark.parametrize("released", [False, True])
def test_what_is_never_confirmed_is_lost_and_that_is_told(real: Backend, proxy: TcpProxy, released: bool) -> None:
    clock = Clock()
    situation = Situation(real, proxy, real.context_through(proxy, timer=real.timer(clock)))
    engine = situation.context._engine
    writer, reader = situation.held_both_ways()
    struck_in_flight(situation, writer)

    def too_long() -> None:
        eventually(lambda: not released or release_waits(situation), LONG_S)
        clock.advance(engine.options.response_timeout_s + 1.0)

    waiting = Background(too_long)
    if released:
        with pytest.raises((LockTimeout, LockUnavailable)):
            reader.release()
        reasons = []  # he has let go of it, and is told so
    else:
        eventually(lambda: reader.lost is LossReason.NOT_CONFIRMED, LONG_S)
        with pytest.raises(LockLost) as caught:
            reader.release()
        assert caught.value.reason is LossReason.NOT_CONFIRMED
        reasons = [LossReason.NOT_CONFIRMED]
    waiting.result()
    assert [event.reason for event in situation.losses.all_told()] == reasons
    assert reader.count == 0
    assert not reader.is_held
    proxy.to_client.delay_s = 0.0

    def undone() -> bool:
        clock.advance(0.1)  # so that it is connected to again
        return traces(real) == []

    eventually(undone, LONG_S, "it is undone when the server can be asked again")
    assert [event.reason for event in situation.losses.all_told()] == reasons


def test_a_swap_of_what_is_gone_is_told_to_who_was_interrupted(situation: Situation) -> None:
    writer, reader = situation.held_both_ways()
    situation.real.view.delete(NAME)
    situation.proxy.to_server.delay_s = math.inf
    with interrupted(lambda: bool(situation.context._engine.leases.swaps)):
        writer.release()
    assert (writer.count, reader.count) == (0, 1)
    situation.proxy.to_server.delay_s = 0.0
    eventually(lambda: reader.lost is LossReason.KEY_GONE, LONG_S)
    assert [event.reason for event in situation.losses.all_told()] == [LossReason.KEY_GONE]
    with pytest.raises(LockLost):
        reader.release()
    assert reader.count == 0
    assert traces(situation.real) == []


@pytest.mark.parametrize("meanwhile", [Situation.the_end, Situation.all_of_it_and_the_end])
def test_a_context_that_is_closed_meanwhile_hides_no_interruption(
    real: Backend, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Situation], None]
) -> None:
    waiting = begin_late(monkeypatch)
    situations: list[Situation] = []

    def play(interruption: Interruption) -> None:
        situation = Situation(real, proxy, real.context_through(proxy, timer=real.timer()))
        situations.append(situation)
        writer, reader = situation.held_both_ways()
        waiting.append(interruption)
        try:
            writer.release()
        except Struck:
            pass
        interruption.end()
        assert (writer.count, reader.count) == (0, 1)
        situation.context.close()
        assert not reader.is_held
        assert isinstance(reader.lost, LossReason), interruption.where
        with pytest.raises(LockLost):
            reader.release()
        assert reader.count == 0

    for where in at_every_place(play, meanwhile=lambda: meanwhile(situations[-1])):
        eventually(lambda: traces(real) == [], LONG_S, f"no key is left, interrupted at {where}")
        assert len(situations[-1].losses.all_told()) == 1, where
