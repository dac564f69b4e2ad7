"""Hand-over over a network that fails: one holder at most, and nothing left behind that nobody holds."""

from __future__ import annotations

import math

import pytest

from tests.support.backend import LONG_S, Backend, connected, token_of
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockNotAcquired, LockTimeout, LockUnavailable

NAME = "import:2026"


@pytest.fixture
def proxy(real: Backend) -> TcpProxy:
    return real.proxy()


@pytest.fixture
def direct(real: Backend) -> LockContext:
    return real.context(timer=real.timer())


def warmed_up(context: LockContext) -> LockContext:
    """It has a connection, and the server knows the scripts."""
    with connected(context).lock("warm-up") as lock:
        lock.reacquire()
    return context


def exported(context: LockContext, timeout: float = 20.0, **terms: float) -> str:
    lock = context.lock(NAME, timeout=timeout, **terms)  # type: ignore[arg-type]
    assert lock.acquire()
    return lock.export()


# The adopter's network


@pytest.mark.parametrize("arrives", [True, False])
def test_an_unanswered_adoption_leaves_nothing(
    real: Backend, proxy: TcpProxy, direct: LockContext, arrives: bool
) -> None:
    context = warmed_up(real.context_through(proxy, timer=real.timer(), response_timeout=0.2))
    text = exported(direct)
    if arrives:
        proxy.drop_replies()
    else:
        proxy.blackhole()
    with pytest.raises((LockTimeout, LockUnavailable)):
        context.adopt(text)
    proxy.heal()
    if arrives:
        eventually(lambda: not real.view.exists(NAME), LONG_S)
    else:
        direct.adopt(text).release()  # it has not been used up
    assert context.stats().held == 0


def test_an_adoption_after_max_hold_is_none(real: Backend, proxy: TcpProxy, direct: LockContext) -> None:
    text = exported(direct, max_hold=1.2)
    proxy.to_server.delay_s = 0.3
    context = real.context_through(proxy, timer=real.timer())
    with pytest.raises(LockNotAcquired):
        context.adopt(text)
    proxy.to_server.delay_s = 0.0
    eventually(lambda: not real.view.exists(NAME), LONG_S)


# The exporter's renewals


@pytest.mark.parametrize("ends", ["late", "cut", "answered late"])
def test_a_renewal_under_way_at_the_export(real: Backend, proxy: TcpProxy, direct: LockContext, ends: str) -> None:
    context = warmed_up(real.context_through(proxy, timer=real.timer()))
    lock = context.lock(NAME, timeout=3.0, renew_every=0.1)
    lock.acquire()
    token = token_of(lock)
    eventually(lambda: lock.renewals)
    delayed = proxy.to_client if ends == "answered late" else proxy.to_server
    delayed.delay_s = math.inf
    sent = proxy.seen("to_server").count(token)
    eventually(lambda: proxy.seen("to_server").count(token) > sent)
    adopted = direct.adopt(lock.export())
    assert adopted.is_held
    sent = proxy.seen("to_server").count(token)
    if ends == "cut":
        proxy.cut()
    delayed.delay_s = 0.0
    assert not context.lock("another").locked()  # the connection is in order again
    assert adopted.is_held
    assert adopted.owned()
    assert not lock.is_held
    assert lock.lost is None
    assert context.stats().lost == 0
    assert proxy.seen("to_server").count(token) == sent, "nothing was sent for its token any more"
    adopted.release()
