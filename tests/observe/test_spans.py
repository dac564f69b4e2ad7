"""Spans of acquires and releases: their parents, their errors, and nothing without a tracer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, StatusCode, Tracer

from tests.support.backend import Backend
from tests.support.lock_types import KINDS, make
from tests.support.logged import Log
from tests.support.redis_server import RedisServer
from wheel_lock import Lock, LockContext, LockLost, LockNotAcquired
from wheel_lock.observe.opentelemetry import trace


class Traced:
    """A context with a tracer, and the spans that have ended."""

    def __init__(self, context: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")
        self.context = context
        trace(context, self.tracer)

    def spans(self) -> list[ReadableSpan]:
        """What has ended since the last call, but for spans of the test."""
        spans = [span for span in self.exporter.get_finished_spans() if span.name.startswith("wheel_lock.")]
        self.exporter.clear()
        return spans

    def names(self) -> list[str]:
        return [span.name.removeprefix("wheel_lock.") for span in self.spans()]


@pytest.fixture
def traced(labelled: LockContext) -> Iterator[Traced]:
    traced = Traced(labelled)
    yield traced
    traced.provider.shutdown()


def test_a_lock_has_two_spans_with_attributes(traced: Traced, label: str, real: Backend) -> None:
    with traced.context.lock("order:42"):
        pass
    acquire, release = traced.spans()
    common = {
        "db.system.name": "redis",
        "server.address": "127.0.0.1",
        "server.port": real.port,
        "wheel_lock.context": label,
        "wheel_lock.lock.name": "order:42",
        "wheel_lock.lock.type": "exclusive",
    }
    assert (acquire.name, dict(acquire.attributes or {})) == (
        "wheel_lock.acquire",
        {**common, "wheel_lock.acquired": True},
    )
    assert (release.name, dict(release.attributes or {})) == ("wheel_lock.release", common)
    assert acquire.status.status_code is release.status.status_code is StatusCode.UNSET


def test_every_kind_of_lock_has_spans(traced: Traced) -> None:
    for kind in KINDS:
        with make(traced.context, kind, kind):
            pass
        assert traced.names() == ["acquire", "release"], kind


async def test_the_parent_is_the_current_span_of_the_task(traced: Traced) -> None:
    async def work(number: int) -> tuple[int, str]:
        with traced.tracer.start_as_current_span(f"job {number}") as span:
            await asyncio.sleep(0)
            async with traced.context.asyncio.lock("shared"):
                await asyncio.sleep(0)
            return span.get_span_context().span_id, f"job {number}"

    jobs = dict(await asyncio.gather(*(work(number) for number in range(5))))
    spans = traced.spans()
    parents = [span.parent.span_id for span in spans if span.parent is not None]
    assert sorted(parents) == sorted([*jobs, *jobs])


def test_a_refusal_is_no_error_and_a_loss_is(traced: Traced, real: Backend) -> None:
    with real.context().lock("taken"):
        assert not traced.context.lock("taken").acquire(blocking=False)
        (refused,) = traced.spans()
        assert (refused.attributes or {})["wheel_lock.acquired"] is False
        assert refused.status.status_code is StatusCode.UNSET
        with pytest.raises(LockNotAcquired), traced.context.lock("taken", blocking=False):
            pass
    traced.spans()
    lock = traced.context.lock("lost")
    lock.acquire()
    real.view.delete("lost")
    with pytest.raises(LockLost):
        lock.release()
    _, release = traced.spans()
    assert release.status.status_code is StatusCode.ERROR
    assert (release.attributes or {})["error.type"] == "wheel_lock.errors.LockLost"
    assert [event.name for event in release.events] == ["exception"]


async def test_a_cancelled_acquire_is_recorded_and_leaves_nothing(traced: Traced) -> None:
    holder = traced.context.asyncio.lock("held")
    await holder.acquire()
    task = asyncio.create_task(traced.context.asyncio.lock("held").acquire())
    while traced.context.stats().waiting == 0:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await holder.release()
    spans = traced.spans()
    assert [(span.attributes or {}).get("error.type") for span in spans] == [
        None,
        "asyncio.exceptions.CancelledError",
        None,
    ]
    assert await traced.context.asyncio.lock("held", blocking=False).acquire()


class _Failing(NoOpTracer):
    """A tracer that starts no span of a verb, or none at all."""

    def __init__(self, error: BaseException, verb: str = "") -> None:
        self._error, self._verb = error, verb

    def start_span(self, *arguments: Any, **keywords: Any) -> Any:
        if self._verb in arguments[0]:
            raise self._error
        return super().start_span(*arguments, **keywords)


def test_a_tracer_that_fails_costs_the_span_only(labelled: LockContext, log: Log) -> None:
    trace(labelled, _Failing(RuntimeError("no span")))
    with labelled.lock("held") as lock:
        assert lock.is_held
    assert len(log.said("a span of a lock could not be started")) == 2


def test_a_release_is_carried_out_although_its_span_is_interrupted(labelled: LockContext, real: Backend) -> None:
    trace(labelled, _Failing(KeyboardInterrupt(), "release"))
    lock = labelled.lock("held")
    lock.acquire()
    with pytest.raises(KeyboardInterrupt):
        lock.release()
    assert real.context().lock("held").acquire(blocking_timeout=30.0)


class _StrikesAtTheEnd(SpanProcessor):
    """Ctrl-C while the span of an acquire ends."""

    def on_end(self, span: ReadableSpan) -> None:
        if span.name == "wheel_lock.acquire":
            raise KeyboardInterrupt


@pytest.mark.parametrize("tasks", [False, True])
def test_a_trace_shows_that_a_granted_lock_was_undone(
    traced: Traced, caplog: pytest.LogCaptureFixture, real: Backend, tasks: bool
) -> None:
    traced.provider.add_span_processor(_StrikesAtTheEnd())
    lock = (traced.context.asyncio if tasks else traced.context).lock("held")

    async def acquire() -> None:
        with pytest.raises(KeyboardInterrupt):
            await lock.acquire()

    if tasks:
        asyncio.run(acquire())
    else:
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
    assert real.context().lock("held").acquire(blocking_timeout=30.0)
    acquire_span, release_span = traced.spans()
    assert (acquire_span.attributes or {})["wheel_lock.acquired"] is True
    assert release_span.name == "wheel_lock.release"
    assert release_span.status.status_code is StatusCode.ERROR
    assert (release_span.attributes or {})["error.type"] == "builtins.KeyboardInterrupt"
    assert "ended span" not in caplog.text


class _StrikesAheadOfTheEnd(NoOpTracer):
    """A tracer whose spans are interrupted by Ctrl-C ahead of their end."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def start_span(self, *arguments: Any, **keywords: Any) -> Any:
        span: Any = self._tracer.start_span(*arguments, **keywords)
        end, interruptions = span.end, [KeyboardInterrupt]

        def interrupted() -> None:
            if interruptions:
                raise interruptions.pop()
            end()

        span.end = interrupted
        return span


def test_a_span_that_is_open_when_its_lock_is_undone_says_so_itself(traced: Traced, real: Backend) -> None:
    trace(traced.context, _StrikesAheadOfTheEnd(traced.tracer))
    with pytest.raises(KeyboardInterrupt):
        traced.context.lock("held").acquire()
    assert real.context().lock("held").acquire(blocking_timeout=30.0)
    (span,) = traced.spans()
    assert (span.name, (span.attributes or {})["wheel_lock.acquired"]) == ("wheel_lock.acquire", False)
    assert span.status.status_code is StatusCode.ERROR


def test_without_a_tracer_there_are_only_plain_objects(labelled: LockContext, traced: Traced, real: Backend) -> None:
    before, other = real.context().lock("other"), traced.context.lock("traced")
    assert type(before) is Lock
    assert type(other) is not Lock
    assert isinstance(other, Lock)
    assert repr(other) == repr(before).replace("other", "traced")
    locks = traced.context.acquire_many(["a", "b"])
    traced.context.release_many(locks.values())
    assert traced.names() == []


async def test_locks_of_a_quorum_have_spans(masters: list[RedisServer]) -> None:
    with LockContext.quorum([master.client() for master in masters], node_timeout=5.0) as context:
        traced = Traced(context)
        with context.lock("vote"):
            pass
        async with context.asyncio.lock("vote"):
            pass
        assert traced.names() == ["acquire", "release"] * 2


def test_other_things_are_refused(labelled: LockContext) -> None:
    with pytest.raises(TypeError, match="context"):
        trace(labelled.timer, NoOpTracer())
    with pytest.raises(TypeError, match="tracer"):
        trace(labelled, "tracer")  # type: ignore[arg-type]
    assert issubclass(NoOpTracer, Tracer)
