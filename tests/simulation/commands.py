"""A model of a Redis server: the commands that the engine and its scripts send, on a clock that a test moves.

It executes at once what it is given. test_contract.py holds it against a real server: same replies, same times-to-live.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.simulation.server import (
    BareServer,
    Push,
    Refused,
    Status,
    ZSet,
    encode,
    form,
    integer,
    number,
    real,
)

_SYNTAX = "ERR syntax error"
_NO_SCRIPT = "NOSCRIPT No matching script. Please use EVAL."


class Server(BareServer):
    """A server with the commands that are used."""

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

    # -- pub/sub -----------------------------------------------------------------------------------------------------

    def tell(self, channel: str, message: str) -> None:
        """Publish a message of the server's own."""
        self._publish(False, channel.encode(), message.encode())

    def wake_all(self) -> None:
        """Publish a message on each channel of wake-ups to which a connection listens."""
        channels = {channel for session in self.sessions.values() for channel in session.channels}
        for sharded, channel in sorted(channels):
            if b":wake:" in channel:
                self._publish(sharded, channel, b"0")

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

    def _change_channels(self, what: bytes, sharded: bool, channels: Iterable[bytes], join: bool) -> list[Push]:
        known, pushes = self._session.channels, []
        for channel in channels:
            if join:
                known[sharded, channel] = None
            else:
                known.pop((sharded, channel), None)
            pushes.append(Push([what, channel, sum(each is sharded for each, _ in known)]))
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


def _bound(text: bytes) -> tuple[float, bool]:
    inclusive = text[:1] != b"("
    try:
        return real(text.removeprefix(b"(") or b"0"), inclusive
    except Refused:
        raise Refused("ERR min or max is not a float") from None


def _listed(found: list[tuple[bytes, float]], scores: bool) -> list[bytes]:
    return [item for member, score in found for item in ((member, number(score)) if scores else (member,))]
