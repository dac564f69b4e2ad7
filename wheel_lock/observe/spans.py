"""Spans of acquires and releases, for OpenTelemetry. Used where a tracer was given, and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from wheel_lock.errors import text_of

logger: logging.Logger = logging.getLogger("wheel_lock")


class Spans:
    """Makes the spans of one context. A failure of the tracer is logged, and costs the span only.

    Args:
        tracer: The user's tracer. The parent of a span is the current span of the calling thread or task.
        attributes: The attributes of all spans.
    """

    def __init__(self, tracer: Tracer, attributes: Mapping[str, str | int]) -> None:
        self._tracer = tracer
        self._attributes = attributes

    def start(self, operation: str, names: Sequence[str | bytes], kind: str) -> Span | None:
        """Start the span of ``operation`` on the locks ``names``, of the lock type ``kind``; return None if that fails."""
        shown = [text_of(name) for name in names]
        attributes: dict[str, Any] = {
            **self._attributes,
            "wheel_lock.lock.name": shown[0] if len(shown) == 1 else shown,
            "wheel_lock.lock.type": kind,
        }
        try:
            return self._tracer.start_span(f"wheel_lock.{operation}", kind=SpanKind.CLIENT, attributes=attributes)
        except Exception:
            logger.exception("a span of a lock could not be started")
            return None

    def end(self, span: Span | None, acquired: bool | None = None) -> None:
        """End a span; an acquire notes whether the lock was granted."""
        if span is None:
            return
        try:
            if acquired is not None:
                span.set_attribute("wheel_lock.acquired", acquired)
            span.end()
        except Exception:
            logger.exception("a span of a lock could not be ended")

    def has_ended(self, span: Span | None) -> bool:
        """Return whether a span has ended, or is none that anyone records."""
        try:
            return span is not None and not span.is_recording()
        except Exception:
            return False

    def fail(self, span: Span | None, error: BaseException, *, undone: bool = False) -> None:
        """End a span whose operation has raised ``error``. One that has ended stays as it is.

        Args:
            undone: True for an acquire whose lock was granted, and released again.
        """
        if span is None or self.has_ended(span):
            return
        try:
            if undone:
                span.set_attribute("wheel_lock.acquired", False)
            span.set_attribute("error.type", f"{type(error).__module__}.{type(error).__qualname__}")
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            span.end()
        except Exception:
            logger.exception("a span of a lock could not be ended")
