"""Time limits of requests that the caller sends itself begin when it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.direct.opened import on_path, opened, path_of
from tests.support.backend import LONG_S, Backend
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockTimeout
from wheel_lock.engine.direct.hold import DirectHold
from wheel_lock.engine.requests.base import CallerRequest
from wheel_lock.engine.requests.release import Release
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.errors import WheelLockError

pytestmark = pytest.mark.usefixtures("unwatched")
NAME = "order:42"
LIMIT_S = 2.0


@pytest.fixture
def unanswered(real: Backend, proxy: TcpProxy) -> Iterator[tuple[LockContext, TcpProxy]]:
    context = real.context_through(proxy, timer=real.timer(), response_timeout=LIMIT_S)
    opened(context)
    yield context, proxy
    proxy.heal()
    eventually(lambda: not real.view.exists(NAME), LONG_S)


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> list[CallerRequest]:
    """The requests that have failed."""
    requests: list[CallerRequest] = []
    for kind in (Release, FirstTry):
        fail = kind.failed

        def note(request: CallerRequest, error: WheelLockError, fail: object = fail) -> None:
            requests.append(request)
            fail(request, error)  # type: ignore[operator]

        monkeypatch.setattr(kind, "failed", note)
    return requests


def test_a_release(unanswered: tuple[LockContext, TcpProxy], failed: list[CallerRequest]) -> None:
    context, proxy = unanswered
    lock = context.lock(NAME)
    lock.acquire()
    hold: DirectHold | None = path_of(context).hold_of(lock._lease)  # type: ignore[arg-type]
    assert hold is not None
    proxy.to_client.delay_s = float("inf")
    with pytest.raises(LockTimeout):
        lock.release()
    [request] = failed
    assert request.until == hold.asked_at + LIMIT_S


@pytest.mark.parametrize(("limit_s", "takes_s"), [(None, LIMIT_S), (0.06, 0.1), (0.5, 0.5)])
def test_an_acquire(
    unanswered: tuple[LockContext, TcpProxy],
    failed: list[CallerRequest],
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float | None,
    takes_s: float,
) -> None:
    context, proxy = unanswered
    uses = path_of(context).uses
    proxy.to_client.delay_s = float("inf")
    lock = context.lock(NAME, blocking_timeout=limit_s)
    with pytest.raises(LockTimeout):
        lock.acquire()
    assert not on_path(lock)
    assert path_of(context).uses == uses + 1
    [request] = failed
    latest_s = takes_s + context.timer.scale.tick_s
    assert takes_s - 0.05 <= request.until - request_began(request) <= latest_s + 1e-9


def request_began(request: CallerRequest) -> float:
    assert isinstance(request, FirstTry)
    assert request.began_at is not None
    return request.began_at
