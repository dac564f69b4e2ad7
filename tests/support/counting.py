"""Counts of what the library does, instead of times: its calls, its system calls, and what a server is asked.

Counts are the same on a busy machine. Calls are seen by a profile function (see sys.setprofile) in every thread that starts
while a `Counting` exists, and in the one that has made it; they count between `begin` and `end`.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

import wheel_lock

_LIBRARY = str(Path(wheel_lock.__file__).parent)
_CLOCK = f"{_LIBRARY}/testing.py"
_TESTS = str(Path(__file__).parents[1])

SYSTEM_CALLS = {
    "socket.send": "send",
    "socket.sendmsg": "sendmsg",
    "socket.recv": "recv",
    "epoll.poll": "epoll_wait",
    "epoll.modify": "epoll_ctl",
    "epoll.register": "epoll_ctl",
    "epoll.unregister": "epoll_ctl",
    "eventfd_read": "eventfd_read",
    "eventfd_write": "eventfd_write",
    "urandom": "getrandom",
    "SystemRandom.getrandbits": "getrandom",
}
"""The C functions that are system calls, by the names that they have in Python."""

STAND_INS: dict[tuple[str, str], str] = {
    ("held_calls.py", "sender.<locals>.send"): "send",
    ("held_calls.py", "receiver.<locals>.receive"): "recv",
}
"""Functions of the library that make a system call in a way that a profile function does not see, such as ctypes. They are
counted as one; a call from there of a C function of the table above, their fallback, is not."""


class Counts:
    """Calls by function. `python` are those of the library's functions, `c` those that it makes of C functions."""

    def __init__(self) -> None:
        self.python: Counter[str] = Counter()
        self.c: Counter[str] = Counter()
        self.system: Counter[str] = Counter()

    def __add__(self, other: Counts) -> Counts:
        both = Counts()
        both.python, both.c = self.python + other.python, self.c + other.c
        both.system = self.system + other.system
        return both

    def table(self, units: int, most: int = 60) -> str:
        """Which function is called how often, per unit."""
        lines = [f"{'per unit':>10}  function"]
        for kind, counter in (("system", self.system), ("python", self.python), ("C", self.c)):
            lines.append(f"{counter.total() / units:10.3f}  {kind}, in all")
            lines += [f"{count / units:10.3f}      {name}" for name, count in counter.most_common(most)]
        return "\n".join(lines)


class Counting:
    """Counts calls by thread. Use it in a `with`, in which the threads to be seen are started."""

    def __init__(self) -> None:
        self._on = False
        self._muted: set[int] = set()
        self._threads: dict[int, Counts] = {}

    def __enter__(self) -> Self:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def begin(self) -> None:
        """Count from here on, beginning with nothing."""
        self._threads.clear()
        self._on = True

    def end(self) -> None:
        self._on = False

    def of(self, is_wanted: Callable[[int], bool] = lambda ident: True) -> Counts:
        """The counts of the threads whose idents are wanted."""
        total = Counts()
        for ident, counts in self._threads.items():
            if is_wanted(ident):
                total += counts
        return total

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Do not count what this thread does in the block: it inspects the library, and does not use it."""
        me = threading.get_ident()
        self._muted.add(me)
        try:
            yield
        finally:
            self._muted.discard(me)

    def _see(self, frame: FrameType, event: str, called: Any) -> None:
        if not self._on or event not in ("call", "c_call"):
            return
        code = frame.f_code
        path = code.co_filename
        me = threading.get_ident()
        if path.startswith(_TESTS) or path == _CLOCK or me in self._muted:
            return
        counts = self._threads.setdefault(me, Counts())
        ours = path.startswith(_LIBRARY)
        file = path.rpartition("/")[2]
        stand_in = STAND_INS.get((file, code.co_qualname)) if ours else None
        if event == "c_call":
            name = getattr(called, "__qualname__", repr(called))
            if ours:
                counts.c[name] += 1
            if stand_in is None and name in SYSTEM_CALLS:
                counts.system[SYSTEM_CALLS[name]] += 1
        elif ours:
            counts.python[f"{code.co_qualname} ({file})"] += 1
            if stand_in is not None:
                counts.system[stand_in] += 1


@contextmanager
def counted_bytecodes() -> Iterator[list[int]]:
    """Count, in a list of one number, the bytecodes of the library's functions that this thread executes in the block."""
    count = [0]

    def see(frame: FrameType, event: str, argument: object) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(_LIBRARY):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count[0] += 1
        return see

    before = sys.gettrace()
    sys.settrace(see)
    try:
        yield count
    finally:
        sys.settrace(before)


class ServerCounts:
    """What a server has done since the last query, but for these queries themselves: commands by name, bytes both ways."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._reader = self._socket.makefile("rb")
        self._command = b"INFO everything\r\n"
        self._last: dict[str, int] = {}
        self._length = 0
        self.commands: Counter[str] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0
        self.look()

    def look(self) -> None:
        """Take the counts since the last query."""
        self._socket.sendall(self._command)
        header = self._reader.readline()
        text = self._reader.read(int(header[1:]) + 2)
        now: dict[str, int] = {}
        for line in text.decode().splitlines():
            name, _, value = line.partition(":")
            if name.startswith("cmdstat_"):
                now[name.removeprefix("cmdstat_")] = int(value.partition(",")[0].removeprefix("calls="))
            elif name in ("total_net_input_bytes", "total_net_output_bytes"):
                now[name] = int(value)
        more = {name: value - self._last.get(name, 0) for name, value in now.items()}
        self.bytes_in = more.pop("total_net_input_bytes") - len(self._command)
        self.bytes_out = more.pop("total_net_output_bytes") - self._length  # the reply to this query is not in yet
        more.pop("info", None)
        self.commands = Counter({name: count for name, count in more.items() if count})
        self._last, self._length = now, len(header) + len(text)

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
