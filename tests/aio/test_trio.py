"""Under trio the locks of asyncio are refused in words that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.support.backend import Backend
from tests.support.lock_types import KINDS, make, traces
from wheel_lock import LockContext

CALLS: dict[str, Callable[[Any], Any]] = {
    **{kind: lambda context, kind=kind: make(context, kind).acquire() for kind in KINDS},  # type: ignore[misc]
    "cancel_on_lost": lambda context: context.lock("order:42", cancel_on_lost=True, thread_local=False).acquire(),
    "on_lost": lambda context: context.lock("order:42", on_lost=print).acquire(),
    "acquire_many": lambda context: context.acquire_many(["order:42"]),
    "locked": lambda context: context.lock("order:42").locked(),
    "close": lambda context: context.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_lock_for_tasks_of_asyncio_says_what_to_use_instead(real: Backend, context: LockContext, call: str) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"a task of trio: .* await trio\.to_thread\.run_sync"):
            await CALLS[call](context.asyncio)

    trio.run(main)
    assert traces(real) == []
    assert not context.closed


def test_a_decorated_coroutine_function_is_refused_as_well(context: LockContext) -> None:
    @context.locked("order:42")
    async def work() -> None:
        raise AssertionError

    with pytest.raises(RuntimeError, match="a task of trio"):
        trio.run(work)
