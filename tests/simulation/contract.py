"""Random commands and scripts, sent to a real server and to the model of one: both must reply the same.

python -m tests.simulation.contract SEQUENCES [SEED]     with the server that REDIS_SERVER names
"""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Iterator
from typing import Any

import hiredis

from tests.simulation.commands import Server
from tests.simulation.lua import Lua
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import fence_key, permits_key, queue_keys
from wheel_lock.protocol.scripts import Script

_SOON_MS = 250  # a number far above a count is a time, and the two clocks are read one after the other
_COMMANDS = 25
_TRIES = 3

NAMES = [b"a", b"{b}c"]
TOKENS = [letter + b"x" * 21 + number for letter in (b"", b"r:", b"w:", b"p:") for number in (b"1", b"2", b"y" * 23)]
TTLS = [b"900", b"30000", b"600000", b"3000"]
FENCES = [b"1", b"9007199254740991"]
_CHANNEL = b"wake"

Words = list[bytes]
_COUNTS = [b"0", b"-1", b"1", b"2", b"x", b"1.5", b"inf", b"(1", b"-inf", b"+inf", b"9007199254740993", b""]

_PROGRAMS = [
    *(b"return {1, 'x', {2.9, false}, nil, 3}", b"return redis.error_reply('MINE own')", b"return {ok = 'fine'}"),
    *(b"return 3.99", b"return -3.99", b"return true", b"return {err = 'OWN x'}", b"local", b"return nothing_here"),
    *(b"error('oh')", b"return redis.sha1hex('')", b"return tostring(2^53)", b"x = 1"),
    *(b"return {redis.call('time')[3], 1}", b"return redis.call('type', KEYS[1])", b"return redis.call('nonsense')"),
]


class Peer:
    """A connection to a real server.

    Attributes:
        now_us: What the server's clock showed before the last timed command, in microseconds.
        then_us: What it showed behind it.
    """

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=10.0)
        self._reader = hiredis.Reader()
        self.now_us = self.then_us = 0

    def ask_timed(self, words: Words) -> Any:
        """Send a command between two looks at the clock; return its reply."""
        before, reply, behind = self.ask([b"TIME"], words, [b"TIME"])
        self.now_us, self.then_us = (int(seconds) * 1_000_000 + int(micros) for seconds, micros in (before, behind))
        return reply

    def ask(self, *commands: Words) -> list[Any]:
        """Send commands in one go; return their replies."""
        self._sock.sendall(b"".join(map(_encoded, commands)))
        replies: list[Any] = []
        while len(replies) < len(commands):
            while (reply := self._reader.gets()) is False:
                self._reader.feed(self._sock.recv(1 << 16))
            replies.append(reply)
        return replies

    def close(self) -> None:
        self._sock.close()


def _encoded(words: Words) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class Model:
    """The model, whose clock is set to that of the real server before each command."""

    def __init__(self, lua: Lua, *, flagged: bool) -> None:
        self.now_us = 0
        self.server = Server(lambda: self.now_us, lua, flagged=flagged)
        self._session = self.server.connect(lambda data: None)
        self._reader = hiredis.Reader()

    def ask(self, words: Words) -> Any:
        self._reader.feed(self.server.handle(self._session, words))
        return self._reader.gets()


def _arguments(script: Script, dice: random.Random) -> tuple[list[bytes], list[bytes]]:
    """Return plausible keys and arguments of a script."""
    pick = dice.choice
    name, token, ttl = pick(NAMES), pick(TOKENS), pick(TTLS)
    queue, alive = queue_keys(name)
    leases = [(pick(NAMES), pick(TOKENS)) for _ in range(dice.randint(1, 3))]
    fenced = dice.random() < 0.5
    fence = [fence_key(name)] if fenced else []
    wait_ttl, zero_or_one, much = pick([b"0", b"5000"]), pick([b"0", b"1"]), b"900000"

    def each(*more: bytes, count: bytes = b"") -> list[bytes]:
        return [word for key, holder in leases for word in (key, holder + count, *more)]

    forms: dict[str, tuple[list[bytes], list[bytes]]] = {
        "acquire": ([name], [token, pick([ttl, b"0"])]),
        "acquire_all": ([], [ttl, *each()]),
        "acquire_many": ([], [ttl, *each()]),
        "acquire_fenced": (
            [name, fence_key(name)],
            [token, ttl, much, zero_or_one, *([pick(FENCES)] if fenced else [])],
        ),
        "write_fence": ([name, fence_key(name)], [token, pick(FENCES), much]),
        "acquire_fair": ([name, queue, alive, *fence], [token, ttl, wait_ttl, _CHANNEL, much]),
        "acquire_reentrant": ([name, *fence], [token + b":1", ttl, much]),
        "acquire_read": ([name], [pick(TOKENS[3:6]), ttl, wait_ttl]),
        "acquire_write": ([name, *fence], [pick(TOKENS[6:9]), ttl, wait_ttl, much]),
        "acquire_permit": ([name, permits_key(name)], [pick(TOKENS[9:]), ttl, pick([b"1", b"2"])]),
        "adopt": ([name, *fence], [token, pick(TOKENS), ttl, *([b"7", much] if fenced else [])]),
        "release": ([name], [token, pick([_CHANNEL, b""])]),
        "release_reentrant": ([name], [token + b":1", _CHANNEL]),
        "extend": ([name], [token, ttl, zero_or_one, pick([b"100000", much])]),
        "extend_reentrant": ([name], [token + b":1", ttl, zero_or_one, much]),
        "extend_holder": ([name], [token, ttl, zero_or_one, pick([b"100000", much])]),
        "renew": ([], [ttl, *each()]),
        "renew_holders": ([], [ttl, *each()]),
        "renew_reentrant": ([], [ttl, *each(count=b":1")]),
        "release_many": ([], each(_CHANNEL)),
        "release_reentrant_many": ([], each(_CHANNEL, count=b":1")),
        "release_holders": ([], each(_CHANNEL, _CHANNEL)),
        "release_fair": ([], [word for key, holder in leases for word in (key, holder, *queue_keys(key), _CHANNEL)]),
        "swap_holder": ([name], [pick(TOKENS[6:9]), pick(TOKENS[3:6]), ttl, _CHANNEL]),
        "look": (
            [name, *([fence_key(name), alive, permits_key(name)] if fenced else [])],
            [b"64", b"512", b"1000", _CHANNEL],
        ),
        "look_holders": ([name, *([permits_key(name)] if fenced else [])], [token]),
        "set_permits": ([permits_key(name)], [pick([b"", b"1", b"3"]), _CHANNEL]),
        "force_release": (
            [name, queue, alive],
            [pick([b"string", b"hash", b"zset"]), _CHANNEL, _CHANNEL, pick([token, token + b":1"])],
        ),
        "rights": ([], [b"nothing", *map(str.encode, sorted(scripts.COMMANDS))]),
    }
    return forms[script.name]


def script_call(dice: random.Random, flagged: bool) -> Words:
    script = dice.choice(scripts.ALL)
    keys, arguments = _arguments(script, dice)
    if script.single is not None and len(arguments) == script.single.arguments and dice.random() < 0.3:
        keys = [arguments[place] for place in script.single.keys]
        arguments = [word for place, word in enumerate(arguments) if place not in script.single.keys]
        script = script.single.script
    form = script.flagged if flagged and dice.random() < 0.7 else script.plain
    head = [b"EVAL", form.source] if dice.random() < 0.5 else [b"EVALSHA", form.sha1.encode()]
    return [*head, b"%d" % len(keys), *keys, *arguments]


def plain_command(dice: random.Random) -> Words:
    pick = dice.choice
    key = pick([*NAMES, *NAMES, fence_key(NAMES[0]), permits_key(NAMES[0]), *queue_keys(NAMES[0])])
    count, ttl, token = pick(_COUNTS), pick(TTLS), pick(TOKENS)
    return pick([
        [b"SET", key, token, *pick([[], [b"NX"], [b"XX"], [b"NX", b"PX", ttl], [b"PX", count], [b"KEEPTTL"], [b"EX"]])],
        [b"SET", key, pick([b"3", b"x", b"-1", b"12345678901234567890"]), b"PX", ttl],
        [b"GET", key],
        [b"DEL", key, pick(NAMES)],
        [b"EXISTS", key, pick(NAMES)],
        [b"TYPE", key],
        [b"STRLEN", key],
        [b"PTTL", key],
        [b"PERSIST", key],
        [b"PEXPIRE", key, ttl, *pick([[], [b"GT"], [b"NX"], [b"XX"], [b"LT"], [b"GT", b"LT"], [b"NX", b"XX"], [b"no"]])],
        [b"PEXPIRE", key, count],
        [b"RPUSH", key, token],
        [b"HSET", key, pick([b"f", b"f:1", token + b":1"]), pick([b"1", b"2"])],
        [b"HSET", key, b"f"],
        [b"HDEL", key, pick([b"f", token + b":1"])],
        [b"HEXISTS", key, b"f"],
        [b"HGET", key, b"f"],
        [b"HSTRLEN", key, b"f"],
        [b"HLEN", key],
        [b"HKEYS", key],
        [b"ZADD", key, count, token],
        [b"ZADD", key, pick([b"1.5", b"-3", b"1e20", b"17"]), pick([token, b"t", b"m"])],
        [b"ZREM", key, token, b"m"],
        [b"ZCARD", key],
        [b"ZSCORE", key, token],
        [b"ZRANGE", key, count, pick(_COUNTS), *pick([[], [b"WITHSCORES"], [b"what"]])],
        [b"ZRANGEBYSCORE", key, count, pick(_COUNTS), *pick([[], [b"WITHSCORES"], [b"LIMIT", b"0", b"1"]])],
        [b"ZCOUNT", key, count, pick(_COUNTS)],
        [b"ZREMRANGEBYSCORE", key, count, pick(_COUNTS)],
        [b"PUBLISH", _CHANNEL, b"0"],
        [b"PUBSUB", b"NUMSUB", _CHANNEL],
        [b"SCRIPT", b"EXISTS", pick(scripts.ALL).plain.sha1.encode()],
        [b"SCRIPT", b"FLUSH"],
        [b"SCRIPT", b"LOAD", pick(scripts.ALL).plain.source],
        [b"EVALSHA", b"0" * 40, b"0"],
        [b"EVAL", b"return redis.call(unpack(ARGV))", b"0", *pick([[b"GET", key], [b"HGET", key, b"f"], [b"GET"]])],
        [b"EVAL", b"return redis.pcall('zscore', KEYS[1], ARGV[1])", b"1", key, token],
        [b"EVAL", pick(_PROGRAMS), b"1", key],
        [b"PING"],
        [b"GET"],
        [b"NONSENSE", b"x"],
        [b"CLIENT", b"SETNAME", b"x"],
    ])  # fmt: skip


def sequence(seed: int, *, flagged: bool) -> list[Words]:
    """Return random commands, and what shows the state of each key that they may have changed."""
    dice = random.Random(seed)
    commands = [script_call(dice, flagged) if dice.random() < 0.6 else plain_command(dice) for _ in range(_COMMANDS)]
    keys = [key for name in NAMES for key in (name, fence_key(name), permits_key(name), *queue_keys(name))]
    for key in keys:
        commands += [[b"TYPE", key], [b"PTTL", key], [b"GET", key], [b"HKEYS", key]]
        commands.append([b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"])
    return commands


def same(real: Any, model: Any) -> bool:
    """Return whether two replies are the same, times being nearly so. Of errors the code counts."""
    if isinstance(real, Exception) or isinstance(model, Exception):
        codes = [str(each).partition(" ")[0] if isinstance(each, Exception) else None for each in (real, model)]
        return codes[0] == codes[1]
    if isinstance(real, list) and isinstance(model, list):
        return len(real) == len(model) and all(map(same, real, model))
    if real == model:
        return True
    try:
        apart = abs(float(real) - float(model))
        size = abs(float(real))
    except (TypeError, ValueError):
        return False
    return apart <= (_SOON_MS * 1000 if size > 1e15 else _SOON_MS if size > 2 * _SOON_MS else 0)


def disagreement(peer: Peer, lua: Lua, seed: int, *, flagged: bool) -> str | None:
    """Run one sequence on both; return where they differ, or None.

    It is given up where a key may have expired while the server was asked: whether it had is not known.
    """
    model, apart_ms = Model(lua, flagged=flagged), 0
    peer.ask([b"FLUSHALL"], [b"SCRIPT", b"FLUSH"])
    commands = sequence(seed, flagged=flagged)
    for number, words in enumerate(commands):
        real = peer.ask_timed(words)
        model.now_us = peer.now_us
        apart_ms = max(apart_ms, peer.then_us // 1000 - peer.now_us // 1000)  # so much later a key may expire there
        if any(abs(when * 1000 - peer.now_us) <= (apart_ms + 1) * 1000 for when in model.server.expires.values()):
            return None
        ours = model.ask(words)
        if not same(real, ours):
            history = "\n".join(f"  {shown(each)}" for each in commands[: number + 1][-_COMMANDS:])
            return f"seed {seed}, command {number}: the server said {real!r}, the model {ours!r}\n{history}"
    return None


def shown(words: Words) -> str:
    names = {form.source: script.name for script in scripts.ALL for form in (script.plain, script.flagged)}
    names |= {form.sha1.encode(): script.name for script in scripts.ALL for form in (script.plain, script.flagged)}
    return " ".join(names.get(word, repr(word)[1:]) for word in words)


def disagreements(port: int, seeds: Iterator[int], *, flagged: bool) -> Iterator[str]:
    """Yield where the model differs from the server, for each of ``seeds`` for which it does so three times in a row.

    (A time may pass a limit between the two.)
    """
    peer, lua = Peer(port), Lua()
    try:
        for seed in seeds:
            found = None
            for _ in range(_TRIES):
                found = disagreement(peer, lua, seed, flagged=flagged)
                if found is None:
                    break
            if found is not None:
                yield found
    finally:
        peer.close()


def main() -> None:
    from tests.support.redis_server import RedisServer, redis_server_version

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 48)
    print(f"{count} sequences from seed {first} on Redis {'.'.join(map(str, redis_server_version()))}")
    with RedisServer() as server:
        flagged = redis_server_version() >= (7,)
        for found in disagreements(server.port, iter(range(first, first + count)), flagged=flagged):
            print(found)
    print("the model replies as the server does")


if __name__ == "__main__":
    main()
