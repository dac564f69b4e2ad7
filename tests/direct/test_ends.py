"""What ends in the middle - a call, a thread, a process, a context, the timer - leaves nothing held; two never hold."""

from __future__ import annotations

import gc
import math
import signal
import threading
from collections.abc import Callable

import pytest

from tests.direct.opened import on_path, only_hold, opened, path_of
from tests.support.backend import LONG_S, Backend, Losses, token_of
from tests.support.background import Background, in_a_fork
from tests.support.interruptions import Interruption, at_every_place
from tests.support.logged import recorded_warnings
from tests.support.proxy import TcpProxy
from tests.support.timers import ask, kill
from tests.support.waiting import eventually
from wheel_lock import ContextClosed, LockContext, LockLost, LossReason, WheelLockError
from wheel_lock.testing import settle

NAME = "order:42"
TIMEOUT_S = 60.0  # long, so that what is left behind is seen


def nothing_is_left(context: LockContext, real: Backend, where: str) -> None:
    settle(context.timer)
    eventually(lambda: context.stats().held == 0 and not path_of(context).claim, LONG_S, f"nothing is held: {where}")
    eventually(lambda: not real.view.exists(NAME), LONG_S, f"no key is left: {where}")
    assert context._engine.leases.acquiring == 0, where


def ready(context: LockContext) -> None:
    """Have the next lock use the path, although a caller was interrupted before."""
    context._engine.interrupted = False
    opened(context)


# Interruptions


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("name", [NAME, "another"])
def test_a_signal_handler_that_uses_a_lock_in_the_middle(context: LockContext, real: Backend, name: str) -> None:
    taken: list[bool] = []

    def handler() -> None:
        lock = context.lock(name, TIMEOUT_S)
        got = lock.acquire(blocking=False)
        taken.append(got)
        if got:
            assert real.view.get(name) == token_of(lock)
            lock.release()

    def scene(interruption: Interruption) -> None:
        opened(context)
        lock = context.lock(NAME, TIMEOUT_S)
        interruption.begin()
        if lock.acquire(blocking=False):
            assert real.view.get(NAME) == token_of(lock)
            lock.release()
        interruption.end()

    for where in at_every_place(scene, meanwhile=handler, raises=False):
        nothing_is_left(context, real, where)
    assert any(taken)
    assert (name == NAME) is (not all(taken))


@pytest.mark.usefixtures("no_collection", "unwatched")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_release_that_the_server_has_refused_is_carried_out(context: LockContext, real: Backend) -> None:
    def scene(interruption: Interruption) -> None:
        ready(context)
        lock = context.lock(NAME, TIMEOUT_S)
        assert lock.acquire()
        assert on_path(lock)
        real.view.script_flush()
        interruption.begin()
        lock.release()

    for where in at_every_place(scene):
        ask(context.timer)
        nothing_is_left(context, real, where)


# Forks


@pytest.mark.usefixtures("unwatched")
def test_a_fork_while_a_lock_is_held_on_the_path(context: LockContext, real: Backend) -> None:
    lock = context.lock(NAME, TIMEOUT_S)
    lock.acquire()

    def in_child() -> None:
        assert lock.lost is LossReason.FORKED
        assert context.held() == []
        with pytest.raises(LockLost):
            lock.release()
        assert not context.lock(NAME).acquire(blocking=False)
        with context.lock("child's"):
            pass

    in_a_fork(in_child)
    assert on_path(lock)
    assert real.view.get(NAME) == token_of(lock)
    lock.release()
    with lock:
        assert on_path(lock)
    assert not real.view.exists(NAME)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("phase", ["PENDING", "RELEASING"])
def test_a_signal_handler_that_forks_in_the_middle_of_a_request(real: Backend, proxy: TcpProxy, phase: str) -> None:
    context = real.context_through(proxy, timer=real.timer(), response_timeout=60.0)
    direct = opened(context)
    lock = context.lock(NAME, TIMEOUT_S)
    if phase == "RELEASING":
        lock.acquire()
    main = threading.get_ident()

    def fork(number: int, frame: object) -> None:
        in_a_fork(lambda: None if context.held() == [] else pytest.fail("the child holds a lock"))
        proxy.heal()

    def strike() -> None:
        eventually(lambda: direct.claim and only_hold(direct).lease.state.name == phase, LONG_S)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, fork)
    proxy.to_client.delay_s = math.inf
    striking = Background(strike)
    try:
        if phase == "PENDING":
            assert lock.acquire()
        lock.release()
    finally:
        striking.result()
        signal.signal(signal.SIGUSR1, before)
    nothing_is_left(context, real, phase)


# Ends


@pytest.mark.usefixtures("unwatched")
def test_a_lock_object_that_is_collected_while_it_is_held(context: LockContext) -> None:
    losses = Losses()
    lock = context.lock(NAME, 20.0, on_lost=losses)
    lock.acquire()
    assert on_path(lock)
    with recorded_warnings() as warned:
        del lock
        gc.collect()
        eventually(losses.delivered, LONG_S)
    assert [event.reason for event in losses.events] == [LossReason.ABANDONED]
    assert len(warned) == 1
    assert not path_of(context).claim


End = Callable[[LockContext], object]
ENDS: dict[str, End] = {
    "close": lambda context: context.close(1.0),
    "stop": lambda context: context.timer.stop(),
    "death": lambda context: kill(context.timer),
}


@pytest.mark.usefixtures("unwatched")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("phase", ["PENDING", "HELD", "RELEASING"])
def test_the_end_of_the_engine_in_each_phase(real: Backend, proxy: TcpProxy, phase: str, how: str) -> None:
    context = real.context_through(proxy, timer=real.timer(), response_timeout=60.0)
    direct = opened(context)
    entered, go_on = threading.Event(), threading.Event()
    lock = context.lock(NAME, TIMEOUT_S)

    def use() -> object:
        try:
            with lock:
                entered.set()
                assert go_on.wait(LONG_S)
        except WheelLockError as error:
            return type(error)
        return None

    if phase == "PENDING":
        proxy.to_client.delay_s = float("inf")
    using = Background(use)
    if phase != "PENDING":
        assert entered.wait(LONG_S)
    if phase == "RELEASING":
        proxy.to_client.delay_s = float("inf")
    if phase != "HELD":
        go_on.set()
    eventually(lambda: not direct.claim or only_hold(direct).lease.state.name == phase, LONG_S)
    ENDS[how](context)
    proxy.heal()
    go_on.set()
    ended_by = using.result()
    assert not lock.is_held
    assert ended_by in (None, ContextClosed, LockLost) or issubclass(ended_by, WheelLockError)  # type: ignore[arg-type]
    if phase != "HELD" or how == "close":  # else the lock is lost, and expires
        eventually(lambda: not real.view.exists(NAME), LONG_S)
    assert not direct.claim
