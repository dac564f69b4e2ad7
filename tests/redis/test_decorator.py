"""Functions and coroutine functions that run under a lock which is named after their arguments."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import inspect
import itertools
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest

from tests.support.backend import BOTH, Backend
from tests.support.background import Background
from tests.support.waiting import eventually
from wheel_lock import LockAlreadyHeld, LockContext, LockNotAcquired
from wheel_lock.decorator import _calls

pytestmark = pytest.mark.servers("real")


@pytest.fixture(autouse=True)
def nothing_is_left(context: LockContext, backend: Backend) -> Iterator[None]:
    yield
    assert not any(lock.is_held for lock in _calls.values())
    if not context.closed:
        eventually(lambda: context.stats().held == 0)


def names(context: LockContext) -> list[str | bytes]:
    return [held.name for held in context.held()]


# Names


def test_a_name_is_filled_in_from_positional_named_and_default_arguments(context: LockContext) -> None:
    @context.locked("report:{user_id}:{kind}:{rest}:{more}")
    def report(user_id: int, /, kind: str = "daily", *rest: int, **more: int) -> list[str | bytes]:
        return names(context)

    assert report(7) == ["report:7:daily:():{}"]
    assert report(7, "weekly") == ["report:7:weekly:():{}"]
    assert report(8, kind="weekly") == ["report:8:weekly:():{}"]
    assert report(8, "weekly", 1, 2, a=3) == ["report:8:weekly:(1, 2):{'a': 3}"]


def test_a_name_follows_attributes_items_conversions_and_formats(context: LockContext) -> None:
    @context.locked("{order.owner.name}:{order.lines[0]}:{number:0{width}d}:{kind!r}:{{x}}")
    def ship(order: Any, number: int, width: int = 4, kind: str = "k") -> list[str | bytes]:
        return names(context)

    order = SimpleNamespace(owner=SimpleNamespace(name="anna"), lines=["book"])
    assert ship(order, 7) == ["anna:book:0007:'k':{x}"]
    assert ship(order, 7, 2, kind="p") == ["anna:book:07:'p':{x}"]


def test_a_field_that_is_no_parameter_is_refused_where_the_function_is_defined(context: LockContext) -> None:
    def function(number: int) -> None: ...

    fields = {f"{{{field}}}": field for field in ("user", "", "0", "order.id", " number")}
    for template, field in {**fields, "{number:{width}d}": "width"}.items():
        with pytest.raises(ValueError, match=r"is not a parameter of .*function") as caught:
            context.locked(template)(function)
        assert f"{{{field}}}" in str(caught.value)


def test_a_name_and_terms_that_cannot_be_are_refused_at_once(context: LockContext) -> None:
    wrong: Any
    for wrong in ("", "n" * 513, "\ud800", "{", "}", "{a", b"report", None):
        with pytest.raises(ValueError, match=r"."):
            context.locked(wrong)
    for wrong in ({"timeout": 0}, {"renew_every": 30.0}, {"max_attempts": 0}, {"blocking_timeout": -1.0}):
        with pytest.raises(ValueError, match="must"):
            context.locked("report:{user_id}", **wrong)


def test_what_is_wrong_with_a_call_is_said_before_anything_is_asked(backend: Backend) -> None:
    context = backend.context()

    @context.locked("{name.id}")
    def work(name: Any) -> None:
        pytest.fail("it runs")

    with pytest.raises(TypeError, match="missing a required argument"):
        work()  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="id"):
        work(7)
    for wrong in ("", "n" * 513):
        with pytest.raises(ValueError, match="a lock name must have 1 to 512 bytes"):
            work(SimpleNamespace(id=wrong))
    assert context.stats().connects == 0


# Functions


@BOTH
def test_results_and_errors_pass_and_the_lock_is_released(backend: Backend, context: LockContext) -> None:
    @context.locked("work")
    def divide(number: int, by: int) -> float:
        assert backend.view.exists("work")
        return number / by

    assert divide(6, 3) == 2
    with pytest.raises(ZeroDivisionError):
        divide(6, by=0)
    assert not backend.view.exists("work")


def test_a_wrapped_function_looks_like_itself(context: LockContext) -> None:
    def report(user_id: int, *, kind: str = "daily") -> str:
        """Write a report."""
        return kind

    async def fetch(user_id: int) -> None: ...

    wrapped = context.locked("report:{user_id}")(report)
    assert wrapped.__name__ == "report"
    assert wrapped.__doc__ == "Write a report."
    assert inspect.signature(wrapped) == inspect.signature(report)
    assert inspect.unwrap(wrapped) is report
    assert not inspect.iscoroutinefunction(wrapped)
    assert inspect.iscoroutinefunction(context.locked("{user_id}")(fetch))


def test_methods_of_every_kind(context: LockContext) -> None:
    class Account:
        kind = "account"

        def __init__(self, number: int) -> None:
            self.number = number

        @context.locked("{self.kind}:{self.number}:{amount}")
        def pay(self, amount: int) -> list[str | bytes]:
            return names(context)

        @staticmethod
        @context.locked("static:{amount}")
        def fee(amount: int) -> list[str | bytes]:
            return names(context)

        @classmethod
        @context.locked("{cls.__name__}:{amount}")
        def total(cls, amount: int) -> list[str | bytes]:
            return names(context)

        @property
        @context.locked("balance:{self.number}")
        def balance(self) -> list[str | bytes]:
            return names(context)

        @context.locked("{self.kind}:{self.number}")
        async def audit(self) -> list[str | bytes]:
            return names(context)

    account = Account(7)
    assert account.pay(5) == ["account:7:5"]
    assert Account.pay(account, amount=6) == ["account:7:6"]
    assert account.fee(5) == Account.fee(5) == ["static:5"]
    assert account.total(5) == Account.total(5) == ["Account:5"]
    assert account.balance == ["balance:7"]
    assert asyncio.run(account.audit()) == ["account:7"]

    class Work:
        def __call__(self, number: int) -> list[str | bytes]:
            return names(context)

    assert context.locked("work:{number}")(Work())(7) == ["work:7"]


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_static_and_class_methods_are_refused_below(context: LockContext, kind: Any) -> None:
    def function() -> None: ...

    with pytest.raises(TypeError, match=f"@{kind.__name__} belongs above the decorator that locks"):
        context.locked("work")(kind(function))


# Contention


def test_what_is_not_acquired_in_time_does_not_run(backend: Backend, context: LockContext) -> None:
    backend.view.set("work", "another", px=60_000)

    @context.locked("work", blocking=False)
    def work() -> None:
        pytest.fail("it runs")

    @context.locked("work", blocking_timeout=0.05)
    async def async_work() -> None:
        pytest.fail("it runs")

    for call in (work, lambda: asyncio.run(async_work())):
        with pytest.raises(LockNotAcquired):
            call()
    assert backend.view.get("work") == b"another"


# Calls inside of calls


def test_a_function_that_calls_itself_gets_an_error_instead_of_waiting_for_ever(context: LockContext) -> None:
    @context.locked("work:{number}")
    def work(number: int) -> int:
        return 1 + work(number)

    @context.locked("work:{number}")
    async def async_work(number: int) -> int:
        return 1 + await async_work(number)

    @context.locked("work:7")
    def of_the_same_name() -> int:
        return work(7)

    calls: list[Callable[[], int]] = [lambda: work(7), lambda: asyncio.run(async_work(7)), of_the_same_name]
    for call in calls:
        with pytest.raises(LockAlreadyHeld, match="The lock 'work:7' is held by a call that this one is part of"):
            call()
    assert names(context) == []


def test_the_same_name_of_another_context_is_another_lock(context: LockContext, backend: Backend) -> None:
    other = backend.context_of(backend.client(db=1))

    @context.locked("work")
    def outer() -> tuple[list[str | bytes], list[str | bytes]]:
        return inner()

    @other.locked("work")
    def inner() -> tuple[list[str | bytes], list[str | bytes]]:
        return names(context), names(other)

    assert outer() == (["work"], ["work"])


def test_what_a_call_starts_elsewhere_waits_for_it(context: LockContext) -> None:
    started: list[Any] = []

    @context.locked("work")
    def work(depth: int) -> None:
        if depth:
            started.append(Background(lambda: work(depth - 1)))
            eventually(lambda: context.stats().waiting == 1)

    @context.locked("work")
    async def async_work(depth: int) -> None:
        if depth:
            started.append(asyncio.create_task(async_work(depth - 1)))
            await asyncio.to_thread(eventually, lambda: context.stats().waiting == 1)

    async def main() -> None:
        await async_work(1)
        await started.pop()

    work(1)
    started.pop().result()
    asyncio.run(main())


# What is not done when the function returns


@contextlib.contextmanager
def manager() -> Iterator[None]:
    yield pytest.fail("it runs")


@contextlib.asynccontextmanager
async def async_manager() -> AsyncIterator[None]:
    yield pytest.fail("it runs")


class Methods:
    @classmethod
    def of_class(cls) -> Iterator[int]:
        yield 1

    def of_object(self) -> Iterator[int]:
        yield 1

    @contextlib.contextmanager
    def manager(self) -> Iterator[None]:
        yield

    async def coroutine(self, number: int) -> int:
        return number


class Yields:
    def __call__(self) -> Iterator[int]:
        yield 1


class Works:
    def __init__(self, context: LockContext) -> None:
        self.context = context

    async def __call__(self) -> list[str | bytes]:
        await asyncio.sleep(0)
        return names(self.context)


@pytest.mark.parametrize(
    "function",
    [
        *(generator, async_generator, manager, async_manager, functools.partial(manager), functools.partial(generator)),
        *(Methods.of_class, Methods().of_object, Methods().manager, Methods.manager),
        *(Yields(), functools.partial(Yields())),
    ],
)
def test_what_yields_is_refused_in_whatever_form(context: LockContext, function: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"is a (generator|context manager made of a generator): its body runs when"):
        context.locked("work")(function)


async def test_what_is_to_be_awaited_is_awaited_under_the_lock_in_whatever_form(context: LockContext) -> None:
    assert await context.locked("work")(Works(context))() == ["work"]
    assert await context.locked("work")(functools.partial(Works(context)))() == ["work"]
    assert await context.locked("work:{number}")(Methods().coroutine)(3) == 3
    assert await context.locked("work:{number}")(functools.partial(Methods().coroutine, number=3))() == 3


class Later:
    """What runs when it is awaited."""

    def __await__(self) -> Any:
        yield pytest.fail("it runs")


async def unlocked() -> None:
    pytest.fail("it runs")


UNFINISHED: dict[str, Callable[[], Any]] = {
    "generator": generator,
    "async generator": async_generator,
    "manager": manager,
    "async manager": async_manager,
    "coroutine": unlocked,
    "awaitable": Later,
    "future": concurrent.futures.Future,
}


@pytest.mark.parametrize("what", UNFINISHED)
def test_what_would_run_unlocked_is_refused_at_the_call(backend: Backend, context: LockContext, what: str) -> None:
    function = UNFINISHED[what]
    kept: list[Any] = []

    def make() -> Any:
        kept.append(function())
        return kept[0]

    async def make_async() -> Any:
        return make()

    decorated: Callable[[], Any] = context.locked("work")(make)
    with pytest.raises(TypeError, match=r"make.* returned an? .*: it would run unlocked; "):
        decorated()
    assert not backend.view.exists("work")
    [result] = kept
    if inspect.isgenerator(result):
        assert inspect.getgeneratorstate(result) == inspect.GEN_CLOSED
    if inspect.iscoroutine(result):
        assert inspect.getcoroutinestate(result) == inspect.CORO_CLOSED
    if isinstance(result, concurrent.futures.Future):
        assert result.cancelled()
    kept.clear()
    if what == "awaitable":
        kept.append(asyncio.run(context.locked("work")(make_async)()))  # a value: its caller has awaited what it was
        assert kept[0] is kept[1]
    else:
        with pytest.raises(TypeError, match=r"make_async returned an? .*: it would run unlocked; "):
            asyncio.run(context.locked("work")(make_async)())
    eventually(lambda: not backend.view.exists("work"))
    del result
    kept.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()


async def test_a_task_that_is_returned_is_cancelled_before_it_runs(context: LockContext) -> None:
    tasks: list[asyncio.Task[None]] = []

    @context.locked("work")
    def start() -> asyncio.Task[None]:
        tasks.append(asyncio.ensure_future(unlocked()))
        return tasks[-1]

    @context.locked("work")
    async def start_async() -> asyncio.Task[None]:
        return start.__wrapped__()  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(TypeError, match="start returned a Task that is not done: it would run unlocked"):
        start()
    with pytest.raises(TypeError, match="start_async returned a Task that is not done"):
        await start_async()
    assert len(tasks) == 2
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


def test_a_future_of_another_threads_loop_is_cancelled_there(context: LockContext) -> None:
    loop = asyncio.new_event_loop()
    running = Background(loop.run_forever)
    try:
        future = loop.create_future()
        with pytest.raises(TypeError, match="Future that is not done"):
            context.locked("work")(lambda: future)()
        eventually(future.cancelled)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        running.result()
        loop.close()
    left = asyncio.Future[None](loop=loop)
    with pytest.raises(TypeError, match="Future that is not done"):
        context.locked("work")(lambda: left)()


async def test_what_is_done_is_returned_as_it_is(context: LockContext, tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("one\ntwo\n")
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    future.set_result(1)

    class Pair(NamedTuple):
        one: Any

    with path.open() as file:
        results = [
            *(file, iter([1]), zip([1], [2], strict=True), enumerate("ab"), itertools.chain([1], [2]), range(3)),
            *(map(str, [1]), future, Pair(map(str, [1])), [generator()], threading.Lock(), contextlib.nullcontext()),
            *(Methods, memoryview(b"1")),
            *(itertools.count(), reversed([1]), {1: 2}.items(), b"1", None, object(), MagicMock()),
        ]
        for result in results:
            assert context.locked("work")(functools.partial(lambda one: one, result))() is result

    done = asyncio.get_running_loop().create_future()
    done.set_result(1)

    @context.locked("work")
    async def work() -> Any:
        return done

    assert await work() is done


class Lazy:
    """An object that does its work when its class is read, as a lazy proxy does."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        pytest.fail("it does its work")


def test_a_lazy_proxy_is_returned_as_it_is(context: LockContext) -> None:
    lazy = Lazy()
    assert context.locked("work")(lambda: lazy)() is lazy
