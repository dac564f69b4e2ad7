"""A model of a Redis server: the commands that the engine and its scripts send, on a clock that a test moves.

It executes at once what it is given. test_contract.py holds it against a real server: same replies, same times-to-live.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Value = bytes | dict[bytes, bytes] | dict[bytes, float] | list[bytes]

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
_SYNTAX = "ERR syntax error"
_NOT_INTEGER = "ERR value is not an integer or out of range"
_NO_SCRIPT = "NOSCRIPT No matching script. Please use EVAL."
_INTEGER = re.compile(rb"-?(0|[1-9][0-9]{0,18})")
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
    if not _INTEGER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise Refused(_NOT_INTEGER)
    return int(text)


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


class Server:
    """A server.

    Args:
        now_us: Returns the server's time in microseconds.
        engine: Compiles scripts: ``compile(source)``, which raises Refused.
        flagged: Whether it knows scripts with a ``#!lua`` line (Redis 7).

    Attributes:
        refusal: Where set, the error that it answers to everything.
        out_of_memory, read_only, misconfigured: Whether commands that write are refused, and how.
        denied: The commands to which the user has no right.
        replica: Whether it is a replica, which nobody but its master changes.
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
        self.peers: Callable[[], Iterable[Server]] = tuple
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
        if isinstance(reply, list) and len(reply) and isinstance(reply[0], _Push):
            return b"".join(encode(list(each)) for each in reply)
        return encode(reply)

    def execute(self, session: Session, words: list[bytes]) -> Any:
        """Execute a command; return the reply. Raises Refused."""
        self._session, self._time_us = session, self._now_us()
        caching, self._asking = session.caching, session.asking
        session.caching = session.asking = False
        self._reading.clear()
        try:
            return self._call(words)
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

    def tell(self, channel: str, message: str) -> None:
        """Publish a message of the server's own."""
        self._publish(False, channel.encode(), message.encode())

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

    def _call(self, words: list[bytes]) -> Any:
        name = words[0].upper()
        found = FORMS.get(name)
        if self.refusal is not None and name not in (b"PING", b"HELLO"):
            raise Refused(self.refusal)
        if found is None:
            raise Refused(f"ERR unknown command '{words[0].decode(errors='replace')}'")
        arity = found.arity
        if len(words) != arity if arity >= 0 else len(words) < -arity:
            raise Refused(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        script = self._in_script
        if name in self.denied:
            if script is None:
                raise Refused(f"NOPERM User default has no permissions to run the '{name.decode().lower()}' command")
            raise Refused("ERR The user executing the script can't run this command or subcommand")
        if self.slots is not None:
            self.slots.check(self, name, words, asking=self._asking, script=script)
        if script is not None and "s" in found.flags:
            raise Refused("ERR This Redis command is not allowed from script")
        if "w" in found.flags:
            if script is not None and script.flags is not None and "no-writes" in script.flags:
                raise Refused("ERR Write commands are not allowed from read-only scripts.")
            self._check_writes("m" in found.flags, script)
        return found.method(self, *words[1:])

    def _check_writes(self, takes_memory: bool, script: Script | None) -> None:
        """Refuse a command that writes, if the state of the server does not allow it."""
        if self.read_only or self.replica:
            raise Refused("READONLY You can't write against a read only replica.")
        if self.misconfigured:
            raise Refused("MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk.")
        allowed = script is not None and script.flags is not None and "allow-oom" in script.flags
        if self.out_of_memory and takes_memory and not allowed:
            raise Refused("OOM command not allowed when used memory > 'maxmemory'.")

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

    # -- strings and keys --------------------------------------------------------------------------------------------

    @form(-3, "wm")
    def set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        when, condition, keep, rest = None, b"", False, list(options)
        while rest:
            option = rest.pop(0).upper()
            if option in (b"PX", b"EX") and rest and when is None:
                amount = integer(rest.pop(0)) * (1 if option == b"PX" else 1000)
                if amount <= 0 or amount > 2**62:
                    raise Refused("ERR invalid expire time in 'set' command")
                when = self.now_ms + amount
            elif option in (b"NX", b"XX") and not condition:
                condition = option
            elif option == b"KEEPTTL":
                keep = True
            else:
                raise Refused(_SYNTAX)
        if keep and when is not None:
            raise Refused(_SYNTAX)
        there = self.get(key) is not None
        if there if condition == b"NX" else condition == b"XX" and not there:
            return None
        self.put(key, value)
        if not keep:
            self.expires.pop(key, None)
        if when is not None:
            self.expires[key] = when
        return Status(b"OK")

    @form(2, "k")
    def get_(self, key: bytes) -> Any:
        return self.get(key, bytes)

    @form(2, "k")
    def strlen(self, key: bytes) -> int:
        return len(self.get(key, bytes) or b"")

    @form(-2, "w")
    def del_(self, *keys: bytes) -> int:
        found = [key for key in keys if self.get(key) is not None and self.remove(key) is None]
        return len(found)

    @form(-2, "k")
    def exists(self, *keys: bytes) -> int:
        return sum(self.get(key) is not None for key in keys)

    @form(2, "k")
    def type(self, key: bytes) -> Status:
        names = {bytes: b"string", dict: b"hash", ZSet: b"zset", list: b"list", type(None): b"none"}
        return Status(names[type(self.get(key))])

    @form(2, "k")
    def pttl(self, key: bytes) -> int:
        return self.ttl_ms(key)

    @form(2, "w")
    def persist(self, key: bytes) -> int:
        if self.get(key) is None or key not in self.expires:
            return 0
        del self.expires[key]
        self.dirty[key] = None
        return 1

    @form(-3, "w")
    def pexpire(self, key: bytes, ttl: bytes, *options: bytes) -> int:
        left, conditions = integer(ttl), {option.upper() for option in options}
        if unknown := [option for option in options if option.upper() not in (b"NX", b"XX", b"GT", b"LT")]:
            raise Refused(f"ERR Unsupported option {unknown[0].decode(errors='replace')}")
        if b"NX" in conditions and conditions - {b"NX"}:
            raise Refused("ERR NX and XX, GT or LT options at the same time are not compatible")
        if {b"GT", b"LT"} <= conditions:
            raise Refused("ERR GT and LT options at the same time are not compatible")
        when = self.now_ms + left
        if when >= 2**63 or when < -(2**63):
            raise Refused("ERR invalid expire time in 'pexpire' command")
        if self.get(key) is None:
            return 0
        old = self.expires.get(key)
        if b"NX" in conditions and old is not None:
            return 0
        if b"XX" in conditions and old is None:
            return 0
        if b"GT" in conditions and (old is None or when <= old):
            return 0
        if b"LT" in conditions and old is not None and when >= old:
            return 0
        if when <= self.now_ms:
            self.remove(key)
        else:
            self.expires[key] = when
            self.dirty[key] = None
        return 1

    @form(1)
    def time(self) -> list[bytes]:
        now = self.now_us
        return [b"%d" % (now // 1_000_000), b"%d" % (now % 1_000_000)]

    @form(-1, "w")
    def flushall(self, *how: bytes) -> Status:
        for key in list(self.data):
            self.remove(key)
        return Status(b"OK")

    @form(-3, "wm")
    def rpush(self, key: bytes, *items: bytes) -> int:
        there = [*(self.get(key, list) or []), *items]
        self.put(key, there)
        return len(there)

    # -- hashes ------------------------------------------------------------------------------------------------------

    @form(-4, "wm")
    def hset(self, key: bytes, *pairs: bytes) -> int:
        if len(pairs) % 2:
            raise Refused("ERR wrong number of arguments for 'hset' command")
        there = dict(self.get(key, dict) or {})
        before = len(there)
        there.update(zip(pairs[::2], pairs[1::2], strict=True))
        self.put(key, there)
        return len(there) - before

    @form(-3, "w")
    def hdel(self, key: bytes, *fields: bytes) -> int:
        there = dict(self.get(key, dict) or {})
        removed = sum(there.pop(field, None) is not None for field in fields)
        if removed:
            self.put(key, there)
        return removed

    @form(3, "k")
    def hexists(self, key: bytes, field: bytes) -> int:
        return int(field in (self.get(key, dict) or {}))

    @form(3, "k")
    def hget(self, key: bytes, field: bytes) -> bytes | None:
        return (self.get(key, dict) or {}).get(field)

    @form(3, "k")
    def hstrlen(self, key: bytes, field: bytes) -> int:
        return len((self.get(key, dict) or {}).get(field, b""))

    @form(2, "k")
    def hlen(self, key: bytes) -> int:
        return len(self.get(key, dict) or {})

    @form(2, "k")
    def hkeys(self, key: bytes) -> list[bytes]:
        return list(self.get(key, dict) or {})

    # -- sorted sets -------------------------------------------------------------------------------------------------

    def _zset(self, key: bytes) -> ZSet:
        return ZSet(self.get(key, ZSet) or {})

    @form(-4, "wm")
    def zadd(self, key: bytes, *pairs: bytes) -> int:
        if len(pairs) % 2:
            raise Refused(_SYNTAX)
        scores = [(real(score), member) for score, member in zip(pairs[::2], pairs[1::2], strict=True)]
        there = self._zset(key)
        before = len(there)
        there.update((member, score) for score, member in scores)
        self.put(key, there)
        return len(there) - before

    @form(-3, "w")
    def zrem(self, key: bytes, *members: bytes) -> int:
        there = self._zset(key)
        removed = sum(there.pop(member, None) is not None for member in members)
        if removed:
            self.put(key, there)
        return removed

    @form(2, "k")
    def zcard(self, key: bytes) -> int:
        return len(self.get(key, ZSet) or {})

    @form(3, "k")
    def zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = (self.get(key, ZSet) or {}).get(member)
        return None if score is None else number(score)

    @form(-4, "k")
    def zrange(self, key: bytes, start: bytes, stop: bytes, *options: bytes) -> list[bytes]:
        if any(option.upper() != b"WITHSCORES" for option in options):
            raise Refused(_SYNTAX)
        first, last = integer(start), integer(stop)
        ranked = self._zset(key).ranked()
        first = max(first + len(ranked), 0) if first < 0 else first
        last = last + len(ranked) if last < 0 else last
        return _listed(ranked[first : last + 1] if last >= 0 else [], bool(options))

    def _between(self, key: bytes, least: bytes, most: bytes) -> list[tuple[bytes, float]]:
        above, above_too = _bound(least)
        below, below_too = _bound(most)
        return [
            (member, score)
            for member, score in self._zset(key).ranked()
            if (score > above or (above_too and score == above)) and (score < below or (below_too and score == below))
        ]

    @form(-4, "k")
    def zrangebyscore(self, key: bytes, least: bytes, most: bytes, *options: bytes) -> list[bytes]:
        rest, scores, offset, count = [option.upper() for option in options], False, 0, -1
        while rest:
            option = rest.pop(0)
            if option == b"WITHSCORES":
                scores = True
            elif option == b"LIMIT" and len(rest) >= 2:
                offset, count = integer(rest.pop(0)), integer(rest.pop(0))
            else:
                raise Refused(_SYNTAX)
        found = self._between(key, least, most)[max(offset, 0) :]
        return _listed(found if count < 0 else found[:count], scores)

    @form(4, "k")
    def zcount(self, key: bytes, least: bytes, most: bytes) -> int:
        return len(self._between(key, least, most))

    @form(4, "w")
    def zremrangebyscore(self, key: bytes, least: bytes, most: bytes) -> int:
        found, there = self._between(key, least, most), self._zset(key)
        for member, _ in found:
            del there[member]
        if found:
            self.put(key, there)
        return len(found)

    # -- scripts -----------------------------------------------------------------------------------------------------

    @form(-2, "s")
    def script(self, what: bytes, *words: bytes) -> Any:
        if what.upper() == b"LOAD":
            return self._engine.sha1(self._load(words[0]))
        if what.upper() == b"FLUSH":
            self.scripts.clear()
            return Status(b"OK")
        return [int(sha1.lower() in self.scripts) for sha1 in words]

    def _load(self, source: bytes) -> bytes:
        sha1: bytes = self._engine.sha1(source)
        if sha1 not in self.scripts:
            self.scripts[sha1] = self._engine.compile(source, self.flagged)
        return source

    @form(-3, "s")
    def eval(self, source: bytes, *words: bytes) -> Any:
        self._load(source)
        return self._run(self.scripts[self._engine.sha1(source)], words)

    @form(-3, "s")
    def evalsha(self, sha1: bytes, *words: bytes) -> Any:
        script = self.scripts.get(sha1.lower())
        if script is None:
            raise Refused(_NO_SCRIPT)
        return self._run(script, words)

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

    def call(self, words: list[bytes]) -> Any:
        """Execute a command of the script that runs. Raises Refused."""
        return self._call(words)

    # -- pub/sub -----------------------------------------------------------------------------------------------------

    def _publish(self, sharded: bool, channel: bytes, message: bytes) -> int:
        what = b"smessage" if sharded else b"message"
        there = [session for session in self.sessions.values() if (sharded, channel) in session.channels]
        for session in there:
            session.push(encode([what, channel, message]))
        return len(there)

    @form(3)
    def publish(self, channel: bytes, message: bytes) -> int:
        for peer in self.peers():
            peer._publish(False, channel, message)
        return self._publish(False, channel, message)

    @form(3)
    def spublish(self, channel: bytes, message: bytes) -> int:
        return self._publish(True, channel, message)

    def _change_channels(self, what: bytes, sharded: bool, channels: Iterable[bytes], join: bool) -> list[_Push]:
        known, pushes = self._session.channels, []
        for channel in channels:
            if join:
                known[sharded, channel] = None
            else:
                known.pop((sharded, channel), None)
            pushes.append(_Push([what, channel, sum(each is sharded for each, _ in known)]))
        return pushes

    @form(-2, "s")
    def subscribe(self, *channels: bytes) -> Any:
        return self._change_channels(b"subscribe", False, channels, True)

    @form(-2, "s")
    def unsubscribe(self, *channels: bytes) -> Any:
        return self._change_channels(b"unsubscribe", False, channels, False)

    @form(-2, "s")
    def ssubscribe(self, *channels: bytes) -> Any:
        return self._change_channels(b"ssubscribe", True, channels, True)

    @form(-2, "s")
    def sunsubscribe(self, *channels: bytes) -> Any:
        return self._change_channels(b"sunsubscribe", True, channels, False)

    @form(-2)
    def pubsub(self, what: bytes, *channels: bytes) -> Any:
        sharded = what.upper() == b"SHARDNUMSUB"
        counted: list[Any] = []
        for channel in channels:
            counted += [channel, sum((sharded, channel) in session.channels for session in self.sessions.values())]
        return counted

    # -- connections and the server ----------------------------------------------------------------------------------

    @form(-1)
    def ping(self, *words: bytes) -> Any:
        if self._session.channels:
            return [b"pong", words[0] if words else b""]
        return words[0] if words else Status(b"PONG")

    @form(-2, "s")
    def client(self, what: bytes, *words: bytes) -> Any:
        session, what = self._session, what.upper()
        if what == b"ID":
            return session.number
        if what == b"TRACKING":
            options = [word.upper() for word in words]
            if options[0] == b"OFF":
                session.feed = None
                return Status(b"OK")
            session.feed = int(words[options.index(b"REDIRECT") + 1]) if b"REDIRECT" in options else session.number
            if session.feed not in self.sessions:
                raise Refused("ERR The client ID you want redirect to does not exist")
        elif what == b"CACHING":
            session.caching = words[0].upper() == b"YES"
        return Status(b"OK")

    @form(-1)
    def info(self, *sections: bytes) -> bytes:
        return b"# Server\r\nredis_version:7.0.15\r\nrun_id:%b\r\n" % self.run_id

    @form(3, "s")
    def wait(self, least: bytes, timeout: bytes) -> int:
        return 0  # a host waits for its replicas


class _Push(list[Any]):
    """One of several replies to one command."""


def _bound(text: bytes) -> tuple[float, bool]:
    inclusive = text[:1] != b"("
    try:
        return real(text.removeprefix(b"(") or b"0"), inclusive
    except Refused:
        raise Refused("ERR min or max is not a float") from None


def _listed(found: list[tuple[bytes, float]], scores: bool) -> list[bytes]:
    return [item for member, score in found for item in ((member, number(score)) if scores else (member,))]
