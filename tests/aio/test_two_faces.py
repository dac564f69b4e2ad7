"""The same steps, taken once by a thread and once by a task, have the same results, errors and words."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.aio.support import Run
from tests.redis.support import Backend
from tests.support.steady_clock import SteadyClock
from wheel_lock import LockContext

NAME = "order:42"
Step = Callable[[Any, Backend], Any]  # given a lock of either face, does something that may have to be awaited
Outcome = tuple[str, str]


def told(value: object) -> Outcome:
    return type(value).__name__, str(value)


def in_thread(context: LockContext, backend: Backend, steps: Sequence[Step], **terms: Any) -> list[Outcome]:
    lock, outcomes = context.lock(NAME, **terms), []
    for step in steps:
        try:
            outcomes.append(told(step(lock, backend)))
        except Exception as error:
            outcomes.append(told(error))
    return outcomes


async def in_task(context: LockContext, backend: Backend, steps: Sequence[Step], **terms: Any) -> list[Outcome]:
    lock, outcomes = context.asyncio.lock(NAME, **terms), []
    for step in steps:
        try:
            value = step(lock, backend)
            outcomes.append(told(await value if inspect.isawaitable(value) else value))
        except Exception as error:
            outcomes.append(told(error))
    return outcomes


def look(lock: Any, backend: Backend) -> Sequence[object]:
    """All that a lock says without asking the server, and what the server says."""
    seen = [lock.name, lock.timeout, lock.is_held, lock.remaining() > 0, lock.lost, lock.token, lock.fence is None]
    return [*seen, lock.renewals, repr(lock).partition(",")[0], backend.view.get(lock.name)]


def ask(question: str, *arguments: Any, **named: Any) -> Step:
    return lambda lock, backend: getattr(lock, question)(*arguments, **named)


ACQUIRE = ask("acquire", token="mine")
RELEASE, LOCKED, OWNED, CHECK = ask("release"), ask("locked"), ask("owned"), ask("raise_if_lost")


def shorten(lock: Any, backend: Backend) -> bool:
    return bool(backend.view.pexpire(NAME, 20_000))


def expires_within(low_s: float, high_s: float) -> Step:
    return lambda lock, backend: low_s * 1000 < backend.view.pttl(NAME) <= high_s * 1000


def block(lock: Any, backend: Backend) -> Awaitable[list[object]] | list[object]:
    """Use it in a `with` or `async with` statement."""
    if not hasattr(lock, "__aenter__"):
        with lock as inside:
            return [inside is lock, lock.is_held]

    async def as_task() -> list[object]:
        async with lock as inside:
            return [inside is lock, lock.is_held]

    return as_task()


STORIES: dict[str, tuple[dict[str, Any], list[Step]]] = {
    "a life": (
        {},
        [
            *(look, LOCKED, OWNED, CHECK, RELEASE, ask("extend", 1.0), ask("reacquire"), ask("export")),
            *(ACQUIRE, look, LOCKED, OWNED, CHECK, expires_within(29, 30)),
            ACQUIRE,  # held already
            *(shorten, ask("reacquire"), expires_within(29, 30)),
            *(ask("extend", 10.0), expires_within(39, 40)),
            *(ask("extend", 5.0, replace_ttl=True), expires_within(4, 5), ask("extend", 5.0, True)),
            *(RELEASE, look, LOCKED, OWNED, CHECK, RELEASE, ask("extend", 1.0), ask("reacquire")),
            *(block, look, ask("acquire", False, token=b"other"), look, RELEASE),
        ],
    ),
    "taken by another": (
        {"blocking": False},
        [
            lambda lock, backend: backend.view.set(NAME, "stranger", px=60_000),
            *(ACQUIRE, LOCKED, OWNED, CHECK, look, block, ask("acquire", blocking_timeout=1.0), RELEASE),
            *(ask("acquire", True, 0.02), ask("acquire", True, 0), ask("acquire", blocking=True, blocking_timeout=0.0)),
            *(lambda lock, backend: backend.view.delete(NAME), ACQUIRE, look, RELEASE),
        ],
    ),
    "key deleted": (
        {"timeout": 20.0},
        [
            *(ACQUIRE, lambda lock, backend: backend.view.delete(NAME), LOCKED, OWNED),
            *(ask("extend", 1.0), look, CHECK, RELEASE, ask("reacquire"), ask("export"), OWNED),
            *(ACQUIRE, look, RELEASE),
        ],
    ),
    "taken over": (
        {"timeout": 20.0},
        [ACQUIRE, lambda lock, backend: backend.view.set(NAME, "stranger"), OWNED, RELEASE, look, CHECK, RELEASE],
    ),
    "fence": (
        {"fencing": True},
        [ACQUIRE, look, OWNED, lambda lock, backend: lock.fence > 1_000_000, ask("reacquire"), RELEASE, look],
    ),
    "not renewed": ({"renew": False, "timeout": 5.0}, [ACQUIRE, look, ask("reacquire"), RELEASE]),
    "one attempt": (
        {"max_attempts": 1},
        [lambda lock, backend: backend.view.set(NAME, "stranger"), ACQUIRE, block, look],
    ),
    "wrong arguments": (
        {},
        [
            *(ask("acquire", True, -1.0), ask("acquire", True, "1"), ask("acquire", token=""), ask("acquire", token=7)),
            *(ACQUIRE, ask("extend", 0.0), ask("extend", -1.0), ask("extend", float("nan")), ask("extend", 1e10)),
            *(ask("extend", True), look, RELEASE),
        ],
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_both_faces_tell_the_same_story(run: Run, backend: Backend, story: str) -> None:
    context = backend.context(timer=backend.timer(SteadyClock()))
    terms, steps = STORIES[story]
    by_thread = in_thread(context, backend, steps, **terms)
    backend.view.flushall()
    by_task = run(in_task(context, backend, steps, **terms))
    assert by_task == by_thread


CONTEXT_ERRORS: list[tuple[Any, dict[str, Any]]] = [
    ("", {}),
    (7, {}),
    ("n" * 513, {}),
    ("\ud800", {}),
    (NAME, {"timeout": 0}),
    (NAME, {"timeout": float("inf")}),
    (NAME, {"timeout": "30"}),
    (NAME, {"timeout": 3.0, "renew_every": 3.0}),
    (NAME, {"renew": False, "renew_every": 1.0}),
    (NAME, {"max_renewals": -1}),
    (NAME, {"max_hold": 0}),
    (NAME, {"blocking_timeout": -1}),
    (NAME, {"max_attempts": 0}),
    (NAME, {"retry_every": 0}),
    (NAME, {"on_lost": "no function"}),
]


@pytest.mark.parametrize(("name", "terms"), CONTEXT_ERRORS)
def test_both_faces_refuse_the_same_terms_in_the_same_words(name: Any, terms: dict[str, Any]) -> None:
    context = LockContext.from_url("redis://127.0.0.1:1")  # where nobody listens, and nobody is asked
    with pytest.raises(ValueError, match=r".") as in_threads:
        context.lock(name, **terms)
    with pytest.raises(ValueError, match=r".") as in_tasks:
        context.asyncio.lock(name, **terms)  # no event loop is needed for that
    assert str(in_tasks.value) == str(in_threads.value)
    assert context.stats().connects == 0
