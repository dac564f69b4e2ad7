"""A model of a Redis server without its commands: connections, keys that expire, how commands and scripts run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Value = bytes | dict[bytes, bytes] | dict[bytes, float] | list[bytes]

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
_NOT_INTEGER = "ERR value is not an integer or out of range"
_INVALIDATIONS = b"__redis__:invalidate"


class Refused(Exception):
    """An error reply."""

    @property
    def text(self) -> str:
        return str(self.args[0])


class Status(bytes):
    """A status reply."""


class ZSet(dict[bytes, float]):
    """A sorted set: scores by member."""

    def ranked(self) -> list[tuple[bytes, float]]:
        return sorted(self.items(), key=lambda item: (item[1], item[0]))


def encode(reply: Any) -> bytes:
    """Return a reply as the server sends it, in RESP2."""
    if isinstance(reply, Status):
        return b"+%b\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, Refused):
        return b"-%b\r\n" % reply.text.encode()
    return b"*%d\r\n%b" % (len(reply), b"".join(map(encode, reply)))


def number(score: float) -> bytes:
    """Return a score as the server writes it."""
    if math.isinf(score):
        return b"inf" if score > 0 else b"-inf"
    return b"%d" % score if score == int(score) and abs(score) < 1e17 else repr(score).encode()


def integer(text: bytes) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 2**63
    if not -(2**63) <= value < 2**63 or b"%d" % value != text:
        raise Refused(_NOT_INTEGER)
    return value


def real(text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or b"_" in text or text != text.strip():
        raise Refused("ERR value is not a valid float")
    return value


class Session:
    """A connection, as the server knows it.

    Attributes:
        push: Sends bytes that the client has not asked for.
        feed: The connection on which invalidations for this one arrive, or None if it does not track.
        caching: Whether the keys that the next command reads are registered.
    """

    def __init__(self, number: int, push: Callable[[bytes], object] = lambda data: None) -> None:
        self.number = number
        self.push = push
        self.channels: dict[tuple[bool, bytes], None] = {}  # sharded or not, and the channel
        self.feed: int | None = None
        self.caching = False
        self.asking = False  # the next command may be about a slot that is being imported


class Push(list[Any]):
    """One of several replies to one command."""


class Script(NamedTuple):
    """A script in the cache: the function, and the flags of its first line, None if it has none."""

    run: Any
    flags: frozenset[str] | None


class Form(NamedTuple):
    """How a command is called, and what it does: its least number of words, negative if there may be more."""

    method: Callable[..., Any]
    arity: int
    flags: str  # w: writes, m: takes memory, s: not in scripts, c: about the connection, k: reads a key


FORMS: dict[bytes, Form] = {}


def form(arity: int, flags: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a method the command of that name."""

    def note(method: Callable[..., Any]) -> Callable[..., Any]:
        FORMS[method.__name__.rstrip("_").upper().encode()] = Form(method, arity, flags)
        return method

    return note


class BareServer:
    """A server that knows no command.

    Args:
        now_us: Returns the server's time in microseconds.
        engine: Compiles scripts: ``compile(source)``, which raises Refused.
        flagged: Whether it knows scripts with a ``#!lua`` line (Redis 7).

    Attributes:
        refusal: Where set, the error that it answers to everything.
        out_of_memory, read_only, misconfigured: Whether commands that write are refused, and how.
        denied: The commands to which the user has no right.
        replica: Whether it is a replica, which only its master changes.
        slots: In a cluster, what it knows about slots; see ``cluster_commands``.
        watch: Of a Sentinel, what it knows about the master; see ``sentinel_commands``.
        peers: In a cluster, the servers to which it passes published messages on.
        dirty: The keys that the command under way has changed, in order; see ``execute``.
        on_change: Called after each command with the keys that it has changed, and the words of the command.
    """

    def __init__(self, now_us: Callable[[], int], engine: Any, *, flagged: bool = True) -> None:
        self._now_us = now_us
        self._engine = engine
        self.flagged = flagged
        self.data: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}  # in ms of its clock
        self.scripts: dict[bytes, Script] = {}
        self.sessions: dict[int, Session] = {}
        self._numbers = 0
        self.refusal: str | None = None
        self.out_of_memory = self.read_only = self.misconfigured = False
        self.denied: frozenset[bytes] = frozenset()
        self.replica = False
        self.slots: Any = None
        self.watch: Any = None
        self.peers: Callable[[], Iterable[Any]] = tuple  # of servers
        self.run_id = b"%040d" % 1
        self.dirty: dict[bytes, None] = {}
        self.on_change: Callable[[list[bytes], list[bytes]], object] = lambda keys, words: None
        self._time_us: int | None = None  # while a command runs, its time
        self._in_script: Script | None = None
        self._registered: dict[bytes, dict[int, None]] = {}
        self._reading: dict[bytes, None] = {}
        self._session = Session(0)
        self._asking = False

    # -- connections -------------------------------------------------------------------------------------------------

    def connect(self, push: Callable[[bytes], object]) -> Session:
        self._numbers += 1
        session = self.sessions[self._numbers] = Session(self._numbers, push)
        return session

    def leave_slot(self, leaves: Callable[[bytes], bool]) -> None:
        """End the subscriptions to those channels of a shard that are served elsewhere by now."""
        for session in list(self.sessions.values()):
            for sharded, channel in list(session.channels):
                if sharded and leaves(channel):
                    del session.channels[sharded, channel]
                    left = sum(each for each, _ in session.channels)
                    session.push(encode([b"sunsubscribe", channel, left]))

    def disconnect(self, session: Session) -> None:
        self.sessions.pop(session.number, None)

    def start_empty(self) -> None:
        """Begin anew after a crash, without data, scripts and connections."""
        gone = list(self.data)
        for part in (self.data, self.expires, self.scripts, self.sessions, self._registered):
            part.clear()
        self.run_id = b"%040d" % (int(self.run_id) + 1)
        self.on_change(gone, [])

    # -- execution ---------------------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        return self._now_us() if self._time_us is None else self._time_us

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def handle(self, session: Session, words: list[bytes]) -> bytes:
        """Execute a command of a client; return the reply."""
        try:
            reply = self.execute(session, words)
        except Refused as error:
            reply = error
        if isinstance(reply, list) and len(reply) and isinstance(reply[0], Push):
            return b"".join(encode(list(each)) for each in reply)
        return encode(reply)

    def execute(self, session: Session, words: list[bytes]) -> Any:
        """Execute a command; return the reply. Raises Refused."""
        self._session, self._time_us = session, self._now_us()
        caching, self._asking = session.caching, session.asking
        session.caching = session.asking = False
        self._reading.clear()
        try:
            return self.call(words)
        finally:
            if caching and session.feed is not None:
                for key in self._reading:
                    if key in self.data:
                        self._registered.setdefault(key, {})[session.number] = None
            self._settle(words)
            self._time_us = None

    def _settle(self, words: list[bytes]) -> None:
        if self.dirty:
            keys = list(self.dirty)
            self.dirty.clear()
            for key in keys:
                self._invalidate(key, self._session.number)
            self.on_change(keys, words)

    def _invalidate(self, key: bytes, by: int | None) -> None:
        for reader in self._registered.pop(key, ()):
            session = self.sessions.get(reader)
            feed = None if session is None or session.feed is None else self.sessions.get(session.feed)
            if reader != by and feed is not None and (False, _INVALIDATIONS) in feed.channels:
                feed.push(encode([b"message", _INVALIDATIONS, [key]]))

    def report(self, key: bytes) -> None:
        """Report a change of a key that has not changed, as a server does whose tracking table is full."""
        self._invalidate(key, None)

    def expire_due(self) -> None:
        """Delete what has expired, as the server does from time to time."""
        now_ms = self.now_ms
        for key in [key for key, when in self.expires.items() if now_ms > when]:
            self.get(key)
        self._session = Session(0)
        self._settle([])

    def call(self, words: list[bytes]) -> Any:
        """Execute a command, of a client or of the script that runs; return the reply. Raises Refused."""
        name = words[0].upper()
        found = FORMS.get(name)
        if self.refusal is not None and name not in (b"PING", b"HELLO"):
            raise Refused(self.refusal)
        if found is None:
            raise Refused(f"ERR unknown command '{words[0].decode(errors='replace')}'")
        method, arity, flags = found
        if len(words) != arity if arity >= 0 else len(words) < -arity:
            raise Refused(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        script = self._in_script
        if name in self.denied:
            if script is None:
                raise Refused(f"NOPERM User default has no permissions to run the '{name.decode().lower()}' command")
            raise Refused("ERR The user executing the script can't run this command or subcommand")
        if self.slots is not None:
            self.slots.check(self, name, words, asking=self._asking, script=script)
        if script is not None and "s" in flags:
            raise Refused("ERR This Redis command is not allowed from script")
        if "w" in flags:
            if script is not None and script.flags is not None and "no-writes" in script.flags:
                raise Refused("ERR Write commands are not allowed from read-only scripts.")
            self._check_writes("m" in flags, script)
        return method(self, *words[1:])

    def _check_writes(self, takes_memory: bool, script: Script | None) -> None:
        """Refuse a command that writes, if the state of the server does not allow it."""
        if self.read_only or self.replica:
            raise Refused("READONLY You can't write against a read only replica.")
        if self.misconfigured:
            raise Refused("MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk.")
        allowed = script is not None and script.flags is not None and "allow-oom" in script.flags
        if self.out_of_memory and takes_memory and not allowed:
            raise Refused("OOM command not allowed when used memory > 'maxmemory'.")

    def _run(self, script: Script, words: tuple[bytes, ...]) -> Any:
        keys = integer(words[0])
        if keys > len(words) - 1:
            raise Refused("ERR Number of keys can't be greater than number of args")
        if keys < 0:
            raise Refused("ERR Number of keys can't be negative")
        if script.flags is not None and "no-writes" not in script.flags:
            self._check_writes(True, script)  # before it begins; without flags each command is checked
        self._in_script = script
        try:
            return self._engine.run(self, script.run, words[1 : keys + 1], words[keys + 1 :])
        finally:
            self._in_script = None

    # -- keys --------------------------------------------------------------------------------------------------------

    def get(self, key: bytes, kind: type[Any] | None = None) -> Any:
        """Return the value of a key, or None. Raises Refused if it is of another type than ``kind``."""
        value = self.data.get(key)
        self._reading[key] = None
        if value is None:
            return None
        if (when := self.expires.get(key)) is not None and self.now_ms > when:
            if not self.replica:
                self.remove(key)
            return None
        if kind is not None and type(value) is not kind:
            raise Refused(WRONG_TYPE)
        return value

    def has(self, key: bytes) -> bool:
        """Return whether a key is there, and has not expired; nothing is deleted."""
        when = self.expires.get(key)
        return key in self.data and (when is None or self.now_ms <= when)

    def remove(self, key: bytes) -> None:
        del self.data[key]
        self.expires.pop(key, None)
        self.dirty[key] = None

    def put(self, key: bytes, value: Any) -> None:
        """Store a value, or delete the key if that is an empty collection."""
        if not value and type(value) is not bytes:
            self.remove(key)
        else:
            self.data[key] = value
            self.dirty[key] = None

    def ttl_ms(self, key: bytes) -> int:
        if self.get(key) is None:
            return -2
        when = self.expires.get(key)
        return -1 if when is None else max(when - self.now_ms, 0)
