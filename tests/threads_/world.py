"""A context on one server in memory, for threads of a run. Its timer is turned by one of them."""

from __future__ import annotations

import itertools
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import hiredis

from tests.engine.rig import FINE, NIL, OK, Launch, array, integer, read_command
from tests.threads_.scheduler import Stage
from tests.threads_.seams import timer_on
from wheel_lock import LockContext, LockTimeout
from wheel_lock.engine.direct.connection import NoReply, NotSent
from wheel_lock.engine.direct.path import DirectPath
from wheel_lock.engine.engine import Engine
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.runtime.timer_threads import TIMER_THREADS

NAME = "order:42"
_numbers = itertools.count(10_000)


class Server:
    """A server that knows plain locks.

    Attributes:
        keys: The token of each name that is taken.
        released: Tokens of which a release has returned: nothing may be sent for them.
        silent: Set while replies do not arrive.
    """

    def __init__(self) -> None:
        self.silent = False
        self.keys: dict[bytes, bytes] = {}
        self.released: set[bytes] = set()

    def answer(self, parts: list[bytes]) -> bytes:
        """Carry out a command; return the reply."""
        command = read_command(parts)
        for _, token in command.pairs:
            assert token not in self.released, f"{command.what} after the release"
        keys, (name, token) = self.keys, command.pairs[0]
        if command.what in ("SET", "acquire"):
            if keys.setdefault(name, token) != token:
                return NIL if command.what == "SET" else array(1000, "string")
            return OK if command.what == "SET" else integer(0)
        if command.what == "release":
            held = keys.get(name)
            if held == token:
                del keys[name]
            return integer(1 if held == token else -1 if held else 0)
        if command.what == "release_many":
            for name, token in command.pairs:
                if keys.get(name) == token:
                    del keys[name]
            return FINE
        assert command.what in ("renew", "acquire_many"), command.what
        assert all(keys.get(name) == token for name, token in command.pairs)
        return FINE


class _Sock:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = hiredis.Reader()
        self._replies = b""
        self._fd = next(_numbers)

    @property
    def readable(self) -> bool:
        return bool(self._replies) and not self._server.silent

    def fileno(self) -> int:
        return self._fd

    def send(self, data: bytes) -> int:
        self._reader.feed(data)
        while (parts := self._reader.gets()) is not False:
            self._replies += self._server.answer(parts)
        return len(data)

    def recv(self, most: int) -> bytes:
        if not self.readable:
            raise BlockingIOError
        data, self._replies = self._replies[:most], self._replies[most:]
        return data

    def close(self, *_: object) -> None: ...

    setblocking = setsockopt = close


class _Connector:
    discovers = in_cluster = False

    def __init__(self, server: Server) -> None:
        self._server = server

    def connect(self, timeout_s: float) -> Any:
        sock: Any = _Sock(self._server)
        rights: frozenset[str] = frozenset()
        return SimpleNamespace(
            sock=sock, capability=0, server=("memory", "0"), missing_rights=rights, keyed=False, close=sock.close
        )

    def listener(self) -> _Connector:
        return self

    def describe(self) -> str:
        return "the server in memory"

    label = describe


class _Direct:
    """The connection of the direct path. Whoever asks may be stopped before the request and before the reply."""

    def __init__(self, stage: Stage, server: Server, pipeline: object) -> None:
        self._stage = stage
        self._server = server
        self.pipeline = pipeline
        self.capability = 0
        self.delay_s = 0.0
        self.closed = False
        self._asking = False

    def ask(self, request: bytes, until: float) -> Reply:
        assert not self._asking, "two threads use the connection"
        if self.closed:
            raise NotSent
        self._asking = True
        reader = hiredis.Reader()
        reader.feed(request)
        reader.feed(self._server.answer(reader.gets()))
        self._stage.offer()
        if self.delay_s:
            self._stage.sleep(self.delay_s)
        self._asking = False
        if self.closed:
            raise NoReply
        reply: Reply = reader.gets()
        return reply

    def close(self) -> None:
        self.closed = True

    reset = close


class Context(LockContext):
    """A context on the server in memory, whose direct path is open."""

    def __init__(self, stage: Stage, *, settles: bool = False, direct: bool = True, **options: Any) -> None:
        self._settles = settles  # runs on until nothing is due
        self.stage = stage
        self.server = Server()
        self._client = None
        timer = timer_on(stage)
        self._engine = engine = Engine(_Connector(self.server), ContextOptions(**options), timer, Launch())
        self.node = node = engine.router.renewer.node
        node.connect()
        for _ in range(3):
            timer.turn()
        assert node.ready
        self.direct = DirectPath(engine.leases, engine.wait_queues, engine.router.renewer)
        self.connection = _Direct(stage, self.server, node.pipeline)
        self.direct.connection = self.connection  # type: ignore[assignment]
        if direct:
            engine.direct = self.direct
        self._callers = 0

    def begin(self, *callers: Callable[[], object]) -> None:
        """Add the threads: that of the timer, number 0, and those of callers."""
        self._callers = len(callers)
        self.stage.actor(self._turn)
        for body in callers:
            self.stage.actor(partial(self._call, body))

    def _turn(self) -> None:
        timer = self.timer
        TIMER_THREADS.add(get_ident())
        self.stage.at_end.append(partial(TIMER_THREADS.discard, get_ident()))
        while self._callers or timer._unread or (self._settles and timer.next_due_at() is not None):
            timer.turn(block=True)
        timer.turn()
        self.direct.count()

    def _call(self, body: Callable[[], object]) -> None:
        try:
            body()
        finally:
            self._callers -= 1
            self.timer.wake()

    def in_time(self, call: Callable[[], object]) -> None:
        """Make a call whose caller may be given up."""
        try:
            call()
        except LockTimeout:
            pass

    def pair(self, name: str = NAME) -> None:
        """Acquire and release a lock, and read its state in between."""
        lock = self.lock(name)
        assert lock.acquire()
        token = lock.token
        assert token is not None
        assert self.server.keys[name.encode()] == token, "believed, and not held"
        assert lock.is_held
        lock.release()
        assert not lock.is_held
        self.server.released.add(token)

    def nothing_is_left(self) -> None:
        """Check that all that was acquired has been released and counted, once."""
        engine, stats = self._engine, self.stats()
        assert self.server.keys == {}
        assert not engine.leases.held
        assert not self.direct.claim
        assert not self.direct.done
        assert (stats.held, stats.acquired, stats.lost) == (0, stats.released, 0)
