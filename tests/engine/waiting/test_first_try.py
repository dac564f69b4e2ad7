"""The first try of a wait, which is made without the constructors of its base classes."""

from __future__ import annotations

from tests.engine.waiting_rig import WaitingRig
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests.acquire import PlainAcquire
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.errors import LossReason
from wheel_lock.options import lock_options


def attributes(request: PlainAcquire) -> dict[str, object]:
    """Return what is set, but for what a first try has only when a waiter takes over."""
    slots = {slot for of in PlainAcquire.__mro__ for slot in getattr(of, "__slots__", ())} - {"future"}
    return {slot: getattr(request, slot) for slot in slots}


def test_it_is_what_the_constructors_make(rig: WaitingRig) -> None:
    first = rig.waiter("a").acquisition
    assert isinstance(first, FirstTry)
    usual = PlainAcquire(rig.engine.leases, first.leases, lock_options(3.0), Future(lambda: None))
    assert attributes(first) == attributes(usual) | {"leases": first.leases, "_options": first._options}


def test_one_that_was_removed_by_force_is_granted_by_its_repetition(rig: WaitingRig) -> None:
    wait = rig.waiter("a")
    first, lease = wait.acquisition, wait.request.lease
    assert isinstance(first, FirstTry)
    lease.loss = LossReason.KEY_GONE
    rig.post(lambda: first.go_on(rig.now, None, False))
    rig.go_on(1.5, rig.agree)
    assert wait.granted
    assert rig.is_valid(lease)
    assert lease.renewals == 1
