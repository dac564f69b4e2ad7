"""What a holder reads of its lock, and the answer to a caller, while something else comes at that very moment."""

from __future__ import annotations

from collections.abc import Callable

from tests.threads_.runs import explore
from tests.threads_.scheduler import Stage
from tests.threads_.world import NAME, Context
from wheel_lock import LostEvent
from wheel_lock import lease as lease_module
from wheel_lock.engine import future, leases
from wheel_lock.engine.renewal import flow
from wheel_lock.locks import base
from wheel_lock.runtime import watchdog
from wheel_lock.sync import call
from wheel_lock.sync.call import _CHECK_AFTER_S

TIMEOUT_S = 3.0


def test_a_lock_that_is_seen_lost_is_never_held_again_and_the_loss_is_reported_once() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage, direct=False)
        losses: list[LostEvent] = []
        seen: list[bool] = []
        lock = context.lock(NAME, TIMEOUT_S, on_lost=losses.append, thread_local=False)
        stage.quiet = True

        def hold() -> None:
            assert lock.acquire()
            context.server.silent = True
            stage.sleep(TIMEOUT_S / 3 + 0.05)  # a renewal is sent, and its reply is on the way
            lease = lock._lease
            assert lease is not None
            stage.now = lease.deadline - 0.001
            context.server.silent = stage.quiet = False
            seen.append(lock.is_held)
            stage.now += 0.002  # behind the deadline, unless the reply was read before
            seen.extend([lock.is_held, lock.lost is None, lock.is_held])
            stage.quiet = True
            stage.sleep(0.5)
            seen.append(lock.is_held)

        context.begin(hold)

        def check() -> None:
            assert seen == sorted(seen, reverse=True), seen
            assert len(losses) == (not seen[-1])

        return check

    assert explore(scene, base, lease_module, leases, flow) > 50


def test_an_answer_that_comes_when_its_caller_looks_after_the_thread() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage, direct=False)
        context.server.silent = True

        def let_it_come(now: float) -> None:
            context.server.silent = False

        context.timer.call_at(stage.now + _CHECK_AFTER_S, let_it_come)
        context.begin(context.pair)
        return context.nothing_is_left

    assert explore(scene, call, future, watchdog) > 50
