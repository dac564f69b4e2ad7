"""A line on a terminal that says what a benchmark does now."""

from __future__ import annotations

from typing import TextIO


class StatusLine:
    """A line on a terminal that ``say`` replaces; omitted elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None

    def say(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
