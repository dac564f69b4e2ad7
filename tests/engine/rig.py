"""What the engine's tests stand on: a clock and a timer turned by hand, and a server whose every byte a test decides.

A connection of the engine is one end of a socket pair; the other end is a ScriptedServer. Nothing here sleeps, and the
only other thread is the notifier's.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import re
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

import hiredis
import pytest

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future
from wheel_lock.engine.renewal.retries import AWAY
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.bulk_operations import AcquireMany
from wheel_lock.engine.waiting.registry import WaitQueueRegistry
from wheel_lock.errors import ContextClosed, LossReason
from wheel_lock.lease import NO_OWNER, Event, Lease, Owner, State
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.capabilities import PLAIN, Capabilities
from wheel_lock.net.connection import PipelinedConnection
from wheel_lock.net.connector import Connection, Server
from wheel_lock.net.pubsub import PubSub
from wheel_lock.observe import ContextStats, LostEvent
from wheel_lock.options import ContextOptions, lock_name, lock_options
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import Reply, lease_args
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.notifier import NOTIFIER, NOTIFIERS, Notifier
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.runtime.tokens import new_token
from wheel_lock.testing import ManualClock

L = TypeVar("L")

TICK_S = 0.01
START = 1000.0  # initial time of the clock
_ROUND_TRIPS = 1000  # limit of round trips without a change of the clock

OK = b"+OK\r\n"
NIL = b"$-1\r\n"
FINE = b"*0\r\n"  # reply of a batched script without exceptions
GONE, TAKEN = 0, 1
BUG = ZeroDivisionError("a bug of the library's own")
REFUSED = ConnectionRefusedError("not listening")


def integer(value: int) -> bytes:
    return b":%d\r\n" % value


def error(text: str) -> bytes:
    return b"-%b\r\n" % text.encode()


def array(*items: int | str) -> bytes:
    """A list; text in it travels as a bulk string, as the server's error texts do."""
    parts = [
        integer(item) if isinstance(item, int) else b"$%d\r\n%b\r\n" % (len(item), item.encode()) for item in items
    ]
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


BUSY = error("BUSY Redis is busy running a script.")
NOSCRIPT = error("NOSCRIPT No matching script. Please use EVAL.")

# What a script's arguments are: how many come before the pairs of name and token.
_BEFORE_PAIRS = {"renew": 1, "acquire_many": 1, "release_many": 0}
_BY_SHA1 = {
    form.sha1.encode(): script
    for script in scripts.ALL
    for each in (script, script.single.script if script.single else script)
    for form in (each.plain, each.flagged)
}


class Command(NamedTuple):
    """A command that has arrived at a server.

    Attributes:
        what: "SET", "EXISTS", ..., or of a script call the name of the script.
        arguments: What follows the command, or the script and the number of its keys.
        use_eval: Whether a script came as text.
        sha1: Of a script call, the SHA-1 of the script.
    """

    what: str
    arguments: tuple[bytes, ...]
    use_eval: bool = False
    sha1: bytes = b""

    @property
    def pairs(self) -> list[tuple[bytes, bytes]]:
        """The names and tokens that it is about."""
        arguments = self.arguments
        if self.what == "release_many":
            return list(zip(arguments[0::3], arguments[1::3], strict=True))
        if self.what in _BEFORE_PAIRS:
            first = _BEFORE_PAIRS[self.what]
            return list(zip(arguments[first::2], arguments[first + 1 :: 2], strict=True))
        if self.what == "acquire_fenced":
            return [(arguments[0], arguments[2])]
        return [(arguments[0], arguments[1] if len(arguments) > 1 else b"")]

    @property
    def names(self) -> list[str]:
        return [name.decode() for name, _ in self.pairs]

    @property
    def ttl_ms(self) -> int:
        return int(self.arguments[{"SET": 4, "acquire": 2, "acquire_fenced": 3}.get(self.what, 0)])


def read_command(parts: Sequence[bytes]) -> Command:
    """Make sense of a parsed request."""
    verb = parts[0].decode()
    if verb not in ("EVAL", "EVALSHA"):
        return Command(verb, tuple(parts[1:]))
    sha1 = parts[1] if verb == "EVALSHA" else hashlib.sha1(parts[1]).hexdigest().encode()
    script, arguments = _BY_SHA1[sha1], list(parts[3:])
    if script.single is not None and int(parts[2]):  # one lease, its keys declared: as in a call that declares none
        keys = arguments[: int(parts[2])]
        del arguments[: len(keys)]
        for place, key in zip(script.single.keys, keys, strict=True):
            arguments.insert(place, key)
    return Command(script.name, tuple(arguments), verb == "EVAL", sha1)


def agreement(command: Command) -> bytes:
    """The reply that grants a command what it wants."""
    if command.what == "SET":
        return OK
    if command.what in _BEFORE_PAIRS:
        return FINE
    if command.what == "extend":
        return integer(int(command.arguments[2]))
    if command.what in ("acquire", "acquire_all"):
        return integer(0)
    if command.what == "look":
        return error("ERR the holder of a long wait is not known here")
    return integer(1)


class ScriptedServer:
    """The server's end of one connection.

    Attributes:
        hung_up: Whether the engine has closed its end.
        taken: How many commands the test has read.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._reader = hiredis.Reader()
        self._commands: deque[Command] = deque()
        self.hung_up = False
        self.closed = False
        self.taken = 0

    def read(self, most: int = 1 << 30) -> None:
        """Take in what has arrived, at most so many bytes."""
        while not self.closed and not self.hung_up and most:
            try:
                data = self._sock.recv(min(most, 1 << 20))
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            self.hung_up = not data
            most -= len(data)
            self._reader.feed(data)
            while (parts := self._reader.gets()) is not False:
                self._commands.append(read_command(parts))

    def take(self) -> list[Command]:
        """The commands that have arrived since the last call."""
        self.read()
        commands = list(self._commands)
        self._commands.clear()
        self.taken += len(commands)
        return commands

    def one(self, what: str) -> Command:
        """The only command that has arrived since the last call."""
        commands = self.take()
        assert [command.what for command in commands] == [what]
        return commands[0]

    def say(self, *replies: bytes) -> None:
        """Send bytes, whatever they are."""
        try:
            self._sock.sendall(b"".join(replies))
        except (BrokenPipeError, ConnectionResetError):
            self.hung_up = True

    def agree(self) -> list[Command]:
        """Grant whatever has arrived since the last call."""
        commands = self.take()
        for command in commands:
            self.say(agreement(command))
        return commands

    def close(self) -> None:
        """Hang up. With unread bytes waiting the engine sees a reset, else an end of file."""
        self.closed = True
        self._sock.close()


class _Socket(socket.socket):
    """The engine's end; ``before_recv`` is called when it is about to be read."""

    before_recv: Callable[[], object] | None = None

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        if self.before_recv is not None:
            self.before_recv()
        return super().recv(bufsize, flags)


def pair_connection(sock: socket.socket, server: Server = ("pair", "0"), capability: int = PLAIN) -> Connection:
    """Return a connection that is one end of a socket pair."""
    return Connection(sock, server, Capabilities(capability))


class ScriptedConnector:
    """Connects to scripted servers.

    Attributes:
        refusal: Where set, every attempt to connect fails with it.
        servers: The server's ends of all connections made, oldest first.
        sockets: The engine's ends.
        attempts: How often a connection was asked for.
        attempted_at: When.
        flagged: Whether the servers know scripts with a #!lua line; or another capability of theirs.
        address: Where the next connection leads.
    """

    discovers = False
    in_cluster = False

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.refusal: BaseException | None = None
        self.servers: list[ScriptedServer] = []
        self.sockets: list[_Socket] = []
        self.attempted_at: list[float] = []
        self.flagged: int = True
        self.address: tuple[str | None, str] = ("scripted", "6379")
        self._listeners: ScriptedConnector | None = None

    @property
    def listeners(self) -> ScriptedConnector:
        """What connects for wake-ups."""
        if self._listeners is None:
            self._listeners = ScriptedConnector(self._clock)
        return self._listeners

    @property
    def attempts(self) -> int:
        return len(self.attempted_at)

    def listener(self) -> ScriptedConnector:
        """Connections for wake-ups are made apart, so that a test sees those that it is about."""
        return self.listeners

    def connect(self, timeout_s: float) -> Connection:
        self.attempted_at.append(self._clock.now())
        if self.refusal is not None:
            raise self.refusal
        ours, theirs = socket.socketpair()
        sock = _Socket(fileno=ours.detach())
        sock.setblocking(False)
        self.sockets.append(sock)
        self.servers.append(ScriptedServer(theirs))
        return pair_connection(sock, self.address, self.flagged)

    def close(self) -> None:
        """Close both ends of all connections, those for wake-ups included."""
        for server in self.servers:
            server.close()
        for sock in self.sockets:
            sock.close()
        if self._listeners is not None:
            self._listeners.close()

    def label(self) -> str:
        return self.describe()

    def describe(self) -> str:
        return "the scripted server"


@contextmanager
def breaking(owner: object, method: str, error: BaseException = BUG, nth: int = 0) -> Iterator[None]:
    """Have a method raise an error in place of its nth call, or of each one, in a ``with``."""
    call, calls = getattr(owner, method), itertools.count(1)

    def fail(*arguments: Any, **more: Any) -> Any:
        if nth in (0, next(calls)):
            raise error
        return call(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, fail)
        yield


F = TypeVar("F", bound=Exception)


def failure(future: Future[Any], kind: type[F], match: str = "") -> F:
    """The error with which an operation has ended."""
    assert future.done
    assert isinstance(future.error, kind)
    assert re.search(match, str(future.error)), future.error
    return future.error


class NotingRequest:
    """A request that notes what becomes of it, for a channel without an engine."""

    above = None
    finished = False
    awaited = True
    may_wait = True

    def outlasts_refusal(self, *, first: bool) -> bool:
        return True

    def __init__(self, data: bytes = b"PING\r\n") -> None:
        self.data = data
        self.replies: list[Reply] = []
        self.unsents = 0
        self.breaks: list[Exception] = []

    def encode(self, capability: int) -> bytes:
        return self.data

    def on_reply(self, reply: Reply) -> None:
        self.replies.append(reply)

    def unsent(self) -> None:
        assert not self.breaks
        self.unsents += 1

    def on_connection_lost(self, error: Exception) -> None:
        self.breaks.append(error)

    def on_unavailable(self, error: Exception) -> None:
        raise AssertionError("no test refuses here")

    def crashed(self, error: Exception) -> None:
        raise AssertionError("a failure of the channel") from error

    def ahead(self, missing_rights: frozenset[str]) -> Self:
        return self


class Launch:
    """Runs attempts to connect inline, or holds them back: a slow network.

    Attributes:
        slow: Whether to hold them back from now on.
        held: Those that are held back.
    """

    def __init__(self) -> None:
        self.slow = False
        self.held: list[Callable[[], None]] = []

    def __call__(self, attempt: Callable[[], None]) -> None:
        if self.slow:
            self.held.append(attempt)
        else:
            attempt()

    def go_on(self) -> None:
        """Run those that were held back."""
        held, self.held = self.held, []
        for attempt in held:
            attempt()


class Attempt(NamedTuple):
    """An acquire that has begun."""

    lease: Lease
    request: Acquire
    future: Future[bool]


class BulkAttempt(NamedTuple):
    """A bulk acquire that has begun."""

    leases: list[Lease]
    bulk: AcquireMany
    future: Future[None]


class _Failures(logging.Handler):
    """Notes what the timer's thread survived: the engine must have no such failures."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "survived" in record.getMessage() or "cannot take" in record.getMessage():
            self.seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}" if record.exc_info else "?")


class HandTurned(Generic[L]):
    """An engine of any kind on a timer that is turned by hand."""

    engine: Any

    def __init__(self, tick_ms: int = 10) -> None:
        self.clock = ManualClock(START)
        self.timer = HashedWheelTimer(tick_ms=tick_ms, clock=self.clock, threaded=False)
        self.launch = Launch()
        self._losses: list[L] = []
        self._others = list(NOTIFIERS)

    @property
    def now(self) -> float:
        return self.clock.now()

    def turn(self) -> None:
        """Let the timer's thread do all that it can do at this moment, connecting included."""
        for _ in range(3):
            self.timer.turn()

    def jump(self, seconds: float) -> None:
        """Move the clock in one step and turn: what a stopped process experiences."""
        self.clock.jump(seconds)
        self.turn()

    def _pass(self, moment: float, let: Callable[[], object]) -> None:
        """Let time pass as a running thread experiences it, from one due moment to the next; call ``let()`` at each."""
        let()
        while self.now < moment - 1e-9:
            due = self.timer.next_due_at()
            self.clock.jump(max(min(moment, math.inf if due is None else due) - self.now, 0.0))
            let()

    def connect(self) -> None:
        """Let the attempts to connect that were held back go on, and turn."""
        self.launch.go_on()
        self.turn()

    def post(self, work: Callable[[], object]) -> None:
        """Have work done on the timer's thread, as a caller's thread does, and turn."""
        self.timer.post(work, self.engine)
        self.turn()

    def ask(self, begin: Callable[[Future[Any]], object]) -> Future[Any]:
        """Post work that completes an operation, and turn."""
        future: Future[Any] = Future(lambda: None)
        self.post(lambda: begin(future))
        return future

    def drain(self) -> None:
        """Wait until all reports of this engine have been delivered. (Those of earlier tests may be very many.)"""
        for notifier in NOTIFIERS:
            assert notifier in self._others or notifier.drain(10.0)
        assert Notifier.drain(NOTIFIER, 10.0)

    @property
    def losses(self) -> list[L]:
        """The losses that were reported, in order."""
        self.drain()
        return list(self._losses)

    def close(self) -> None:
        """Stop the timer; nothing turns it again, so nothing else closes its selector."""
        self.timer.stop()
        self.timer._close()
        self.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Rig(HandTurned[tuple[Lease, LostEvent]]):
    """An engine of one server; losses are with their leases."""

    def __init__(self, *, tick_ms: int = 10, **options: Any) -> None:
        super().__init__(tick_ms)
        self.connector = ScriptedConnector(self.clock)
        self.engine: Engine = Engine(self._connects(), ContextOptions(**options), self.timer, self.launch)
        self._failures = _Failures()
        logging.getLogger("wheel_lock").addHandler(self._failures)

    def _connects(self) -> Any:
        """Return what the engine connects by."""
        return self.connector

    # -- time --------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        super().turn()
        for renewer in self.engine.router.shards if self.engine.leases.held else ():
            assert (renewer.flow.retries.condition is AWAY) is not renewer.node.ready

    def go_to(self, moment: float, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Let time pass as a running thread experiences it, from one due moment to the next.

        Args:
            moment: When to stop.
            meanwhile: Called after each turn, until no commands are left: what the server does in between.
        """
        self._pass(moment, lambda: self._let(meanwhile))

    def _let(self, meanwhile: Callable[[], object]) -> None:
        self.turn()
        for _ in range(_ROUND_TRIPS):
            taken = sum(server.taken for server in self.servers)
            meanwhile()
            self.turn()
            if sum(server.taken for server in self.servers) == taken:
                return
        raise AssertionError(f"{_ROUND_TRIPS} round trips while the clock stood still: a hot loop")

    def go_on(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Like ``go_to``, for so many seconds."""
        self.go_to(self.now + seconds, meanwhile)

    # -- the server --------------------------------------------------------------------------------------------------

    @property
    def server(self) -> ScriptedServer:
        """The newest connection's other end."""
        return self.connector.servers[-1]

    @property
    def servers(self) -> list[ScriptedServer]:
        """The other ends of all connections, those for wake-ups included."""
        return self.connector.servers + self.connector.listeners.servers

    def agree(self) -> None:
        """Have every server grant whatever has arrived, and turn."""
        for server in self.connector.servers:
            server.agree()
        self.turn()

    def hang_up(self) -> None:
        """Have the newest server close its connection, and turn."""
        self.server.close()
        self.turn()

    def be_away(self, seconds: float = 0.0) -> None:
        """Have the server close its connection and refuse others until ``connector.refusal`` is None; let time pass."""
        self.connector.refusal = REFUSED
        self.hang_up()
        self.go_on(seconds)

    def be_silent(self, seconds: float) -> None:
        """Let time pass in which the server says nothing and no other connection stands until ``connect()``."""
        self.launch.slow = True
        self.go_on(seconds)

    def reconnect(self, seconds: float = 0.1, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Have the newest server close its connection, and let time pass, in which another is made."""
        self.server.close()
        self.go_on(seconds, meanwhile)

    def say(self, *replies: bytes) -> None:
        """Have the newest server say something, and turn."""
        self.server.say(*replies)
        self.turn()

    def whats(self) -> list[str]:
        """What has arrived at the newest server since the last call."""
        return [command.what for command in self.server.take()]

    def reply(self, to: str | None, *replies: bytes) -> None:
        """Have the newest server reply to the one command that has arrived, or to whatever it was; turn."""
        commands = self.server.take()
        if to is not None:
            assert [command.what for command in commands] == [to]
        self.say(*replies)

    # -- what callers ask for ----------------------------------------------------------------------------------------

    def lease(
        self,
        name: str | bytes,
        timeout: float = 3.0,
        *,
        kind: LockType = EXCLUSIVE,
        owner: Owner = NO_OWNER,
        token: str | None = None,
        **terms: Any,
    ) -> Lease:
        """A lease that is not acquired yet."""
        options = lock_options(timeout, **terms)
        group = self.engine.router.renewer.group(kind, options.timeout_s, options.timeout_ms, options.renew_every_s)
        word = new_token() if token is None else token.encode()
        lease = Lease(name, lease_args(lock_name(name, b""), word), group, owner)
        lease.on_lost = partial(self._note, lease)
        return lease

    def _note(self, lease: Lease, event: LostEvent) -> None:
        self._losses.append((lease, event))

    def acquire(
        self,
        name: str | bytes,
        timeout: float = 3.0,
        *,
        kind: LockType = EXCLUSIVE,
        owner: Owner = NO_OWNER,
        token: str | None = None,
        **terms: Any,
    ) -> Attempt:
        """Begin to acquire a lock."""
        lease = self.lease(name, timeout, kind=kind, owner=owner, token=token, **terms)
        future: Future[bool] = Future(lambda: None)
        request = Acquire(self.engine.leases, (lease,), lock_options(timeout, **terms), future)
        self.post(request.begin)
        return Attempt(lease, request, future)

    def _grant(self) -> None:
        self.server.agree()
        self.turn()

    def hold(self, name: str | bytes, timeout: float = 3.0, **options: Any) -> Lease:
        """Acquire a lock that the server grants at once."""
        attempt = self.acquire(name, timeout, **options)
        self._grant()
        assert attempt.future.done
        assert attempt.future.result()
        return attempt.lease

    def acquire_many(
        self, names: Iterable[str], timeout: float = 3.0, *, limit_s: float | None = None, **options: Any
    ) -> BulkAttempt:
        """Begin to acquire many locks."""
        leases = [self.lease(name, timeout, **options) for name in names]
        future: Future[None] = Future(lambda: None)
        bulk = AcquireMany(self.engine.leases, lock_options(timeout, **options), future)
        self.timer.post(lambda: bulk.begin(len(leases), limit_s), self.engine)
        self.timer.post(lambda: bulk.add(leases), self.engine)
        self.post(bulk.seal)
        return BulkAttempt(leases, bulk, future)

    def hold_many(self, names: Iterable[str], timeout: float = 3.0, **options: Any) -> list[Lease]:
        """Acquire many locks that the server grants at once."""
        attempt = self.acquire_many(names, timeout, **options)
        self._let(self._grant)
        assert attempt.future.done
        assert attempt.future.error is None
        assert all(lease.state is State.HELD for lease in attempt.leases)
        return attempt.leases

    def release(self, lease: Lease) -> Future[None]:
        return self.ask(lambda future: self.engine.release(lease, future))

    def release_many(self, leases: Sequence[Lease]) -> Future[dict[str | bytes, LossReason]]:
        return self.ask(lambda future: self.engine.release_many(leases, future))

    def extend(self, lease: Lease, seconds: float, *, replace: bool = False) -> Future[None]:
        time_ms = round(seconds * 1000)
        return self.ask(lambda future: self.engine.extend(lease, time_ms, replace, future))

    def close_engine(self, timeout: float = 5.0, **how: Any) -> Future[None]:
        return self.ask(lambda future: self.engine.close(timeout, future, **how))

    def end(self, how: End) -> None:
        """End the engine as its timer would."""
        self.engine.end(how, ContextClosed("The timer has been stopped"))

    def fork(self) -> None:
        """Do what is done in a forked child."""
        self.timer._forked()

    # -- what can be seen: the engine's internals are read here, and nowhere else --------------------------------------

    @property
    def held(self) -> dict[Lease, None]:
        return self.engine.leases.held

    @property
    def acquiring(self) -> int:
        return self.engine.leases.acquiring

    @property
    def swaps(self) -> dict[Lease, Any]:
        return self.engine.leases.swaps

    @property
    def lines(self) -> WaitQueueRegistry:
        """The wait queues."""
        return self.engine.wait_queues

    @property
    def wakeups(self) -> PubSub:
        return self.engine.router.wakeups

    @property
    def ready(self) -> bool:
        """Whether the node is connected and not suspected."""
        return self.engine.router.renewer.node.ready

    @property
    def connected(self) -> bool:
        return self.engine.router.renewer.node.connected

    @property
    def channel(self) -> PipelinedConnection:
        """The node's connection."""
        channel = self.engine.router.renewer.node._pipeline
        assert channel is not None
        return channel

    @property
    def failures(self) -> list[str]:
        """What the timer's thread has survived; a test that provokes failures clears it."""
        self.drain()
        return self._failures.seen

    def is_valid(self, lease: Lease) -> bool:
        return lease.is_valid(self.now)

    @property
    def reasons(self) -> list[tuple[str | bytes, LossReason]]:
        return [(event.name, event.reason) for _, event in self.losses]

    def stats(self) -> ContextStats:
        return self.engine.stats()

    def close(self) -> None:
        """Close every socket, and fail if the timer's thread had to survive anything."""
        self.engine.router.end(End.CLOSED, ConnectionAbortedError("the test is over"))
        self.connector.close()
        super().close()
        for error in (BUG, REFUSED):  # raised in many tests, they would keep the frames and the engines of all
            error.__traceback__ = error.__context__ = None
        logging.getLogger("wheel_lock").removeHandler(self._failures)
        assert self._failures.seen == []


def add_stranger(rig: Rig, lasting_s: float = 30.0) -> Engine:
    """Return another context's engine on the same timer. It holds one lock."""
    engine = Engine(ScriptedConnector(rig.clock), ContextOptions(), rig.timer, rig.launch)
    group = engine.router.renewer.group(EXCLUSIVE, lasting_s, round(lasting_s * 1000), lasting_s / 3)
    lease = Lease("the other's", b"", group)
    lease.transition(Event.GRANTED)
    lease.deadline = rig.now + lasting_s - 1.0
    engine.leases.held[lease] = None
    return engine


def is_untouched(stranger: Engine) -> bool:
    """Whether it still holds its lock."""
    held = list(stranger.leases.held)
    return len(held) == 1 and held[0].is_valid(stranger.timer.clock.now())


def names(count: int) -> list[str]:
    return [f"lock:{number}" for number in range(count)]


def runs(commands: Iterable[Command]) -> list[tuple[str, int]]:
    """What kinds of command came, in order, each with how many of it came in a row."""
    return [(what, len(list(run))) for what, run in itertools.groupby(command.what for command in commands)]
