"""Leaders: one of several candidates leads, its callbacks are called in order, and another one takes over."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.support.backend import BOTH, LONG_S, Backend
from tests.support.background import in_a_fork
from tests.support.callers import Caller
from tests.support.event_loops import until
from tests.support.logged import Log
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockNotHeld, LossReason
from wheel_lock.runtime.notifier import NOTIFIER

pytestmark = pytest.mark.servers("real")

NAME = "scheduler"


class Candidate:
    """A leader of either API, and the calls of its callbacks."""

    def __init__(self, caller: Caller, **terms: Any) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.errors: list[Exception] = []
        self._caller = caller
        notes = {f"on_{word}": self._note(word) for word in ("elected", "demoted")}
        terms = {"timeout": 30.0, "on_error": self.errors.append, **notes, **terms}
        self.leader: Any = caller.do(lambda: caller.locks._target.leader(NAME, **terms))

    def _note(self, word: str) -> Callable[[Any], None]:
        return lambda leadership: self.calls.append((word, leadership))

    @property
    def words(self) -> list[str]:
        return [word for word, _ in self.calls]

    def start(self) -> Candidate:
        self._caller.do(self.leader.start)
        return self

    def leads(self) -> Any:
        """Wait until it leads, and its callback was called; return the leadership."""
        eventually(lambda: self.words[-1:] == ["elected"] and self.leader.is_leader)
        return self.leader.leadership

    def close(self, timeout: float | None = None) -> None:
        self._caller.do(lambda: self.leader.close(timeout))


@pytest.fixture
def candidate(me: Caller) -> Iterator[Callable[..., Candidate]]:
    """Makes candidates of either API, and closes them."""
    made: list[Candidate] = []

    def make(caller: Caller = me, **terms: Any) -> Candidate:
        made.append(Candidate(caller, **terms))
        return made[-1]

    yield make
    for each in made:
        each.close()


NewCandidate = Callable[..., Candidate]


@pytest.fixture
def _stands_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate stands again soon after it has resigned."""
    monkeypatch.setattr("wheel_lock.locks.leader._AFTER_RESIGNATION_S", 0.02)


@BOTH
def test_one_leads_until_it_closes_and_then_the_next(backend: Backend, candidate: NewCandidate, me: Caller) -> None:
    first, second = candidate(), candidate()
    assert not first.leader.is_leader
    assert first.leader.leadership is None
    leadership = first.start().leads()
    second.start()
    eventually(lambda: me.context.stats().waiting == 1)
    assert not second.leader.is_leader
    assert leadership.is_held
    assert leadership.lost is None
    assert 0 < leadership.remaining() <= 30.0
    assert leadership.name == NAME
    assert not leadership.ended.is_set()
    leadership.raise_if_lost()
    first.close()
    assert leadership.ended.is_set()
    assert leadership.remaining() == 0.0
    with pytest.raises(LockNotHeld):
        leadership.raise_if_lost()
    assert first.words == ["elected", "demoted"]
    assert [each for _, each in first.calls] == [leadership, leadership]
    assert leadership.lost is None
    assert second.leads().fence > leadership.fence
    second.close()
    assert not backend.view.exists(NAME)
    assert first.errors == second.errors == []


def test_a_lost_leadership_is_reported_at_once_and_stood_for_again(
    backend: Backend, candidate: NewCandidate, me: Caller
) -> None:
    leading = candidate(renew_every=0.05).start()
    leadership = leading.leads()
    stuck, lost = threading.Event(), threading.Event()
    with LockContext(backend.client()) as context:
        lock = context.lock(
            "another", renew_every=0.05, thread_local=False, on_lost=lambda event: (lost.set(), stuck.wait())
        )
        lock.acquire()
        backend.view.delete("another")
        assert lost.wait(LONG_S)  # callbacks of locks are no longer called
        backend.view.delete(NAME)
        try:
            eventually(lambda: "demoted" in leading.words, LONG_S)
        finally:
            stuck.set()
    assert NOTIFIER.drain(LONG_S)
    assert leadership.lost is LossReason.KEY_GONE
    assert not leadership.is_held
    assert leadership.ended.is_set()
    with pytest.raises(LockLost):
        leadership.raise_if_lost()
    again = leading.leads()
    assert again.fence > leadership.fence
    assert leading.words == ["elected", "demoted", "elected"]


# Callbacks that fail, or call the leader


@pytest.mark.usefixtures("_stands_again_soon")
@pytest.mark.parametrize("handled", ["handled", "raises", "exits"])
def test_exceptions_of_callbacks_end_nothing(candidate: NewCandidate, handled: str, log: Log) -> None:
    def fail(leadership: Any) -> None:
        raise ZeroDivisionError

    own: dict[str, dict[str, Any]] = {"handled": {}, "raises": {"on_error": fail}, "exits": {"on_error": sys.exit}}
    leading = candidate(on_elected=fail, on_demoted=fail, **own[handled]).start()
    for _ in range(2):
        eventually(lambda: leading.leader.is_leader)
        leading.leader.resign()
    leading.close()
    if handled == "handled":
        assert {type(error) for error in leading.errors} == {ZeroDivisionError}
        assert len(leading.errors) == 4
    else:
        assert log.said("on_demoted of the leader 'scheduler' raised an exception")
        assert log.said("on_error of the leader 'scheduler' raised an exception")


@pytest.mark.parametrize("wrong", ["on_elected", "on_demoted", "on_error"])
def test_wrong_values_are_refused_before_anything_is_sent(wrong: str) -> None:
    async def callback(leadership: Any) -> None: ...

    with LockContext(redis.Redis(port=1)) as context:
        makers: list[Any] = [context.leader, context.asyncio.leader]
        for make in makers:
            with pytest.raises(ValueError, match=f"{wrong} must be callable, not 5"):
                make(NAME, **{wrong: 5})
            with pytest.raises(ValueError, match="a lock name must have"):
                make("")
            for value in ({"timeout": 0}, {"renew_every": 40.0}):
                with pytest.raises(ValueError, match=next(iter(value))):
                    make(NAME, **value)
        with pytest.raises(ValueError, match=f"{wrong} must be a plain function"):
            makers[0](NAME, **{wrong: callback})
        with pytest.raises(ValueError, match="on_error must be a plain function"):
            makers[1](NAME, on_error=callback)
        with pytest.raises(ValueError, match="timeout"):
            context.leader(NAME).close(-1)
        assert context.stats().connects == 0


# The end


def test_it_starts_once_and_closes_as_often_as_one_likes(candidate: NewCandidate) -> None:
    leading = candidate()
    assert "candidate" in repr(leading.leader)
    leading.start().leads()
    assert repr(leading.leader) == "<Leader 'scheduler' leader>"
    assert "held" in repr(leading.leader.leadership)
    with pytest.raises(RuntimeError, match="campaigns once"):
        leading.start()
    leading.close()
    leading.close()
    assert "closed" in repr(leading.leader)
    with pytest.raises(RuntimeError, match="campaigns once"):
        leading.start()
    unused = candidate()
    unused.close()
    with pytest.raises(RuntimeError, match="campaigns once"):
        unused.start()


def test_a_callback_that_hangs_does_not_keep_the_lock_after_a_close(backend: Backend, context: LockContext) -> None:
    stuck, called = threading.Event(), threading.Event()

    def hang(leadership: Any) -> None:
        called.set()
        stuck.wait()

    leader = context.leader(NAME, on_elected=hang).start()
    assert called.wait(LONG_S)
    leadership = leader.leadership
    leader.close(timeout=0.05)
    eventually(lambda: not backend.view.exists(NAME))
    assert leadership is not None
    assert leadership.ended.is_set()
    stuck.set()


def test_a_forked_child_is_not_the_leader(context: LockContext) -> None:
    with context.leader(NAME) as leader:
        eventually(lambda: leader.is_leader)
        leadership = leader.leadership
        assert leadership is not None

        def check() -> None:
            assert not leader.is_leader
            assert not leader.resign()
            assert not leadership.is_held
            leader.close()
            with context.leader("another").start() as another:
                eventually(lambda: another.is_leader)

        in_a_fork(check)
        assert leader.is_leader


def test_a_forked_child_does_not_wait_for_the_campaign_of_a_task(context: LockContext) -> None:
    async def start() -> Any:
        return context.asyncio.leader(NAME).start()

    def check() -> None:
        asyncio.run(asyncio.wait_for(leader.close(timeout=600.0), LONG_S))

    with asyncio.Runner() as runner:
        leader = runner.run(start())
        in_a_fork(check)
        runner.run(leader.close())


# A system that fails


@pytest.mark.settings(own_timer=True)
def test_a_system_that_has_no_thread_for_the_timer_is_an_error_and_the_campaign_goes_on(
    candidate: NewCandidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("wheel_lock.runtime.native.start_new_thread", refuse)
        standing = candidate().start()
        eventually(lambda: len(standing.errors) >= 2)  # of the acquire, and of the pause
    assert {type(error) for error in standing.errors} == {RuntimeError}
    standing.leads()


# Tasks


async def test_on_elected_is_a_task_that_is_cancelled_at_the_end_of_the_term(context: LockContext) -> None:
    calls: list[str] = []

    async def elected(leadership: Any) -> None:
        calls.append("elected")
        try:
            await asyncio.sleep(3600)
        finally:
            calls.append("cancelled")

    async def demoted(leadership: Any) -> None:
        await asyncio.sleep(0)
        calls.append("demoted")

    async with context.asyncio.leader(NAME, on_elected=elected, on_demoted=demoted) as leader:
        await until(lambda: calls == ["elected"])
        assert leader.is_leader
    assert calls == ["elected", "demoted", "cancelled"]
    assert not leader.is_leader


@pytest.mark.usefixtures("_stands_again_soon")
async def test_a_callback_that_awaits_a_cancelled_task_does_not_end_the_campaign(
    context: LockContext, log: Log
) -> None:
    fences: list[int] = []

    async def stop_work(leadership: Any) -> None:
        work = asyncio.ensure_future(asyncio.sleep(3600))
        work.cancel()
        await work  # raises CancelledError, although the campaign is not cancelled

    async with context.asyncio.leader(
        NAME, on_elected=lambda leadership: fences.append(leadership.fence), on_demoted=stop_work
    ) as leader:
        while len(fences) < 2:
            await asyncio.sleep(0.001)
            assert leader._task is not None
            assert not leader._task.done()
            leader.resign()
    assert log.said("on_demoted of the leader 'scheduler' raised an exception")


async def test_a_callback_that_hangs_does_not_keep_a_close_of_a_task(backend: Backend, context: LockContext) -> None:
    async def hang(leadership: Any) -> None:
        await asyncio.sleep(3600)

    leader = context.asyncio.leader(NAME, on_demoted=hang).start()
    await until(lambda: leader.is_leader)
    await leader.close(timeout=0.05)
    eventually(lambda: not backend.view.exists(NAME))
    await asyncio.sleep(0)  # the cancelled campaign ends
