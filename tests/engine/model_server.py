"""A model of Redis as far as locks need it: string keys with an expiry, SET NX PX, our scripts by their SHA-1, pub/sub.

It executes at once what it is given; what makes a network of it - delay, loss, silence - is in world.py. It writes down
what its keys say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.engine.history import History
from tests.engine.rig import GONE, NIL, OK, TAKEN, Command, array, error, integer


class Subscriptions:
    """What a server knows of one connection that listens."""

    COMMANDS = ("SUBSCRIBE", "UNSUBSCRIBE", "PING")

    def __init__(self) -> None:
        self.channels: set[bytes] = set()

    def reply(self, command: Command) -> bytes:
        """Do what the command says and return what the server says to it, in RESP2."""
        if command.what == "PING":
            return array("pong", "") if self.channels else b"+PONG\r\n"
        change = self.channels.add if command.what == "SUBSCRIBE" else self.channels.discard
        said = []
        for channel in command.arguments:
            change(channel)
            said.append(array(command.what.lower(), channel.decode(), len(self.channels)))
        return b"".join(said)


def message(channel: bytes) -> bytes:
    """What those are told who listen to a channel on which something is published."""
    return array("message", channel.decode(), "0")


class Key(NamedTuple):
    """A key's value, and when it expires in seconds of the test's clock."""

    value: bytes
    expires: float


class ModelServer:
    """A server with a clock of its own.

    Args:
        now: The test's clock.
        history: Where it writes what its keys say.
        rate: Seconds of its own clock per second of the test's: 1.005 is half a percent fast.

    Attributes:
        known: The scripts that it remembers, by SHA-1. None while it knows all of them.
        refusal: Where set, the error that it answers to everything.
        publish: Tells those who listen to a channel, and returns how many they are.
        changed: Called with the name of each key that has been set, deleted, or got another expiry.
    """

    def __init__(self, now: Callable[[], float], history: History, rate: float = 1.0) -> None:
        self._now = now
        self._history = history
        self._rate = rate
        self._keys: dict[bytes, Key] = {}
        self._fences: dict[bytes, int] = {}
        self.known: set[bytes] | None = None
        self.refusal: str | None = None
        self.publish: Callable[[bytes], int] = lambda channel: 0
        self.changed: Callable[[bytes], object] = lambda name: None

    def value(self, name: bytes) -> bytes | None:
        """What GET returns."""
        key = self._keys.get(name)
        if key is not None and self._now() >= key.expires:
            del self._keys[name]
            self.changed(name)
            key = None
        return None if key is None else key.value

    @property
    def keys(self) -> list[bytes]:
        """The keys that have not expired."""
        return [name for name in list(self._keys) if self.value(name) is not None]

    def execute(self, command: Command) -> bytes:
        """Do what the command says and return the reply."""
        if self.refusal is not None:
            return error(self.refusal)
        if command.sha1 and self.known is not None and command.sha1 not in self.known:
            if not command.use_eval:
                return error("NOSCRIPT No matching script. Please use EVAL.")
            self.known.add(command.sha1)
        action: Callable[[Command], bytes] = getattr(self, f"_{command.what.lower()}")
        return action(command)

    # -- commands ----------------------------------------------------------------------------------------------------

    def _set(self, command: Command) -> bytes:
        [(name, token)] = command.pairs
        return OK if self._set_if_free(name, token, command.ttl_ms) else NIL

    def _get(self, command: Command) -> bytes:
        value = self.value(command.arguments[0])
        return NIL if value is None else b"$%d\r\n%b\r\n" % (len(value), value)

    def _del(self, command: Command) -> bytes:
        name = command.arguments[0]
        if self.value(name) is None:
            return integer(0)
        self._delete("DEL", name, None)
        return integer(1)

    def _acquire(self, command: Command) -> bytes:
        [(name, token)] = command.pairs
        if not self._set_if_free(name, token, command.ttl_ms):
            if self.value(name) != token:
                return self._refused(name)
            self._prolong("acquire", name, token, command.ttl_ms)
        return integer(0)

    def _refused(self, name: bytes) -> bytes:
        return array(int((self._keys[name].expires - self._now()) * self._rate * 1000))

    def _acquire_many(self, command: Command) -> bytes:
        odd: list[int | str] = []
        for index, (name, token) in enumerate(command.pairs, 1):
            if not self._set_if_free(name, token, command.ttl_ms):
                if self.value(name) == token:
                    self._prolong("acquire_many", name, token, command.ttl_ms)
                else:
                    odd += [index, TAKEN]
        return array(*odd)

    def _acquire_fenced(self, command: Command) -> bytes:
        [(name, token)] = command.pairs
        if not self._set_if_free(name, token, command.ttl_ms):
            if self.value(name) != token:
                return self._refused(name)
            self._prolong("acquire_fenced", name, token, command.ttl_ms)
        fence = max(self._fences.get(name, 0) + 1, int(self._now() * self._rate * 1e6))
        self._fences[name] = fence
        return integer(fence)

    def _renew(self, command: Command) -> bytes:
        odd: list[int | str] = []
        for index, (name, token) in enumerate(command.pairs, 1):
            value = self.value(name)
            if value == token:
                self._prolong("renew", name, token, command.ttl_ms)
            else:
                odd += [index, GONE if value is None else TAKEN]
        return array(*odd)

    def _release(self, command: Command) -> bytes:
        [(name, token)] = command.pairs
        value = self.value(name)
        if value == token:
            self._delete("release", name, token)
            channel = command.arguments[2]
            return integer(1 + (self.publish(channel) if channel else 0))
        return integer(0 if value is None else -1)

    def _publish(self, command: Command) -> bytes:
        return integer(self.publish(command.arguments[0]))

    def _release_many(self, command: Command) -> bytes:
        odd: list[int | str] = []
        for index, (name, token) in enumerate(command.pairs, 1):
            value = self.value(name)
            if value == token:
                self._delete("release_many", name, token)
                self.publish(command.arguments[3 * index - 1])
            else:
                odd += [index, GONE if value is None else TAKEN]
        return array(*odd)

    def _extend(self, command: Command) -> bytes:
        [(name, token)] = command.pairs
        value = self.value(name)
        if value != token:
            return integer(0 if value is None else -1)
        ttl_ms = int(command.arguments[2])
        if command.arguments[3] == b"0":
            ttl_ms += int((self._keys[name].expires - self._now()) * self._rate * 1000)
        if ttl_ms > int(command.arguments[4]):
            return integer(-2)
        self._expire("extend", name, token, ttl_ms)
        return integer(ttl_ms)

    # -- keys --------------------------------------------------------------------------------------------------------

    def _expiry(self, ttl_ms: int) -> float:
        return self._now() + ttl_ms / 1000 / self._rate

    def _set_if_free(self, name: bytes, token: bytes, ttl_ms: int) -> bool:
        if self.value(name) is not None:
            return False
        self._keys[name] = Key(token, self._expiry(ttl_ms))
        self.changed(name)
        self._history.granted(name, token, self._now(), self._expiry(ttl_ms))
        return True

    def _prolong(self, what: str, name: bytes, by: bytes, ttl_ms: int) -> None:
        if self._expiry(ttl_ms) > self._keys[name].expires:
            self._expire(what, name, by, ttl_ms)
        else:
            self._history.touched(what, name, self._keys[name].value, by)

    def _expire(self, what: str, name: bytes, by: bytes, ttl_ms: int) -> None:
        owner = self._keys[name].value
        self._history.touched(what, name, owner, by)
        self._keys[name] = Key(owner, self._expiry(ttl_ms))
        self.changed(name)
        self._history.prolonged(owner, self._expiry(ttl_ms))

    def _delete(self, what: str, name: bytes, by: bytes | None) -> None:
        owner = self._keys.pop(name).value
        self.changed(name)
        self._history.touched(what, name, owner, by)
        self._history.deleted(owner, self._now())
