"""Fault 41: calls that cannot be right are refused before a byte is sent; those that can be work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.faults.sent_commands import assert_sends_nothing
from tests.faults.support import Losses, own_context, wait_s
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from wheel_lock import (
    LockContext,
)

pytestmark = pytest.mark.slow

NAME = "order:42"


@pytest.fixture
def context(proxy: TcpProxy) -> Iterator[LockContext]:
    """Behind a proxy that sees every byte, and connected, so that anything that is sent is seen at once."""
    with own_context(proxy.url) as context:
        with context.lock("warm up"):
            pass
        yield context


@pytest.fixture
def sends_nothing(proxy: TcpProxy, context: LockContext) -> Callable[[Callable[[], object]], None]:
    return partial(assert_sends_nothing, proxy, context)


def test_fault_41_a_value_that_makes_no_sense_is_refused_before_any_io(
    context: LockContext, sends_nothing: Callable[[Callable[[], object]], None]
) -> None:
    """41. A timeout of 0, negative, NaN, 2**63 and the like: a clear error before any I/O.

    What makes no sense tests/test_options.py says; here it is that each method looks before it sends.
    """
    bad: dict[str, Any] = {"timeout": 0, "renew_every": math.nan, "max_hold": -1.0, "retry_every": 2**63}
    too_late: dict[str, Any] = {"timeout": 1.0, "renew_every": 0.988}

    names: list[Any] = ["a\ud800b", "n" * (1 << 20), b"\0" * (1 << 20), bytearray(b"abc")]

    def misuse() -> None:
        for parameter, value in [*bad.items(), ("blocking_timeout", math.inf)]:
            with pytest.raises(ValueError, match=parameter):
                context.lock(NAME, **{parameter: value})
            if parameter not in ("retry_every", "blocking_timeout"):
                with pytest.raises(ValueError, match=parameter):
                    context.acquire_many([NAME], **{parameter: value})
        with pytest.raises(ValueError, match="renew_every"):
            context.lock(NAME, **too_late)
        with pytest.raises(ValueError, match="blocking_timeout"):
            context.lock(NAME).acquire(blocking_timeout=-1.0)
        with pytest.raises(ValueError, match="token"):
            context.lock(NAME).acquire(token="t" * 513)
        for name in names:
            for call in (lambda: context.lock(name), lambda: context.acquire_many(["good", name, "good too"])):  # noqa: B023
                with pytest.raises(ValueError, match="name") as caught:
                    call()
                assert len(str(caught.value)) < 300  # and not a word too many about it
                assert str(caught.value).isprintable()

    sends_nothing(misuse)
    with pytest.raises(ValueError, match="delay"):
        context.timer.new_timeout(print, math.nan)
    assert context.timer.pending == 0


@pytest.mark.parametrize("timeout", [75 * 86400.0, 1e9], ids=["75 days", "the longest"])
def test_fault_41_a_very_long_timeout_that_is_accepted_works(redis_server: RedisServer, timeout: float) -> None:
    """41. What is not refused must work: the thread that waits for a renewal in weeks must not break on that."""
    client = redis_server.client()
    losses = Losses()
    with own_context(redis_server) as context:
        lock = context.lock(NAME, timeout=timeout, on_lost=losses)
        assert lock.acquire()
        wait_s(0.1)
        assert context.timer.deaths == 0
        assert lock.is_held
        assert not losses
        assert client.pttl(NAME) > (timeout - 60.0) * 1000
        lock.release()
