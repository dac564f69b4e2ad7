"""A rig whose context watches its locks, and a server that knows which keys are there, on both connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.engine.rig import FINE, GONE, NIL, OK, Command, Rig, ScriptedServer, agreement, array, integer
from wheel_lock.lease import Lease

_FEED_ID = 17
_ROUNDS = 100


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def message(*keys: str) -> bytes:
    """An invalidation of keys."""
    listed = b"*%d\r\n%b" % (len(keys), b"".join(_bulk(key.encode()) for key in keys))
    return b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n" + listed


class WatchedRig(Rig):
    """A rig with ``watch=True`` and a server.

    Attributes:
        keys: The tokens of the keys that are there, by name. A name that a test removes is gone at the server.
        reported: The names of the registered keys: no command has written them since they were read.
        seen: The commands that have arrived on connections for renewals, and a test has not taken yet.
        replies: What is said to a command instead of the usual, by its name or that of the subcommand of CLIENT; None hangs
            up.
        once: Called before the next command of that name is answered.
        feed_id: The client id of the next connection for invalidations.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(watch=True, **options)
        self.keys: dict[bytes, bytes] = {}
        self.reported: set[bytes] = set()
        self.seen: list[Command] = []
        self.replies: dict[str, bytes | None] = {}
        self.once: dict[str, Callable[[], object]] = {}
        self._withheld: list[tuple[ScriptedServer, bytes]] | None = None
        self.feed_id = _FEED_ID

    # -- the server --------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer what has arrived, and what follows from that, while the clock stands still."""
        for _ in range(_ROUNDS):
            self.turn()
            if not self.answer():
                return
        raise AssertionError("commands without an end while the clock stands still")

    def answer(self) -> int:
        """Answer what has arrived; return the number of commands."""
        number = 0
        for server in list(self.connector.servers):
            for command in server.take():
                self.seen.append(command)
                self._say(server, command, self._usual)
                number += 1
        for server in list(self.connector.listeners.servers):
            for command in server.take():
                self._say(server, command, self._usual_of_feed)
                number += 1
        return number

    def _say(self, server: ScriptedServer, command: Command, usual: Callable[[Command], bytes]) -> None:
        what = command.arguments[0].decode() if command.what == "CLIENT" else command.what
        reply = self.replies.get(what, b"?")
        self.once.pop(what, lambda: None)()
        if reply is None:
            server.close()
        elif not server.closed:
            said = usual(command) if reply == b"?" else reply
            if self._withheld is None:
                server.say(said)
            else:
                self._withheld.append((server, said))

    def withhold(self) -> None:
        """Execute commands from now on, and withhold the replies."""
        self._withheld = []

    def deliver(self) -> None:
        """Deliver the replies that were withheld, and turn."""
        withheld, self._withheld = self._withheld or [], None
        for server, said in withheld:
            server.say(said)
        self.turn()

    def _usual(self, command: Command) -> bytes:
        if command.what == "CLIENT":
            return OK
        if command.what == "SET":
            name, token = command.pairs[0]
            return NIL if name in self.keys else self._set(name, token)
        if command.what == "acquire_many":
            for name, token in command.pairs:
                self._set(name, token)
            return FINE
        if command.what == "EXISTS":
            self.reported.update(name for name in command.arguments if name in self.keys)
            return integer(sum(name in self.keys for name in command.arguments))
        if command.what == "GET":
            return _bulk(self.keys[command.arguments[0]]) if command.arguments[0] in self.keys else NIL
        self.reported.difference_update(name for name, _ in command.pairs)
        if command.what == "renew":
            kept = [self.keys.get(name) == token for name, token in command.pairs]
            status = [int(name in self.keys) for name, _ in command.pairs]
            failed = [(index + 1, status[index]) for index, fine in enumerate(kept) if not fine]
            return array(*[number for pair in failed for number in pair])
        if command.what == "release":
            name, token = command.pairs[0]
            return integer(1) if self.keys.get(name) == token and self.keys.pop(name) else integer(GONE)
        return integer(0) if command.what.startswith("acquire_") else agreement(command)

    def _set(self, name: bytes, token: bytes) -> bytes:
        self.keys[name] = token
        return OK

    def _usual_of_feed(self, command: Command) -> bytes:
        if command.what == "CLIENT":
            return integer(self.feed_id)
        if command.what == "SUBSCRIBE":
            return b"".join(b"*3\r\n$9\r\nsubscribe\r\n%b:1\r\n" % _bulk(channel) for channel in command.arguments)
        if command.what == "UNSUBSCRIBE":
            return b"*3\r\n$11\r\nunsubscribe\r\n%b:0\r\n" % _bulk(command.arguments[0])
        assert command.what == "PING", command
        return b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"

    @property
    def feed(self) -> ScriptedServer:
        """The newest connection for invalidations."""
        return self.connector.listeners.servers[-1]

    def invalidate(self, *names: str) -> None:
        """Report that keys have changed, and serve what follows."""
        self.feed.say(message(*names))
        self.serve()

    # -- what arrives, and what is held ------------------------------------------------------------------------------

    def took(self) -> list[str]:
        """The kinds of the commands that have arrived since the last call, with subcommands of CLIENT."""
        seen, self.seen = self.seen, []
        return [command.arguments[0].decode() if command.what == "CLIENT" else command.what for command in seen]

    def tracked(self) -> list[tuple[bytes, ...]]:
        """The arguments of each CLIENT TRACKING that has arrived since the last call."""
        return [command.arguments for command in self._taken("CLIENT", b"TRACKING")]

    def registered(self) -> list[tuple[bytes, ...]]:
        """The keys of each EXISTS that has arrived since the last call."""
        return [command.arguments for command in self._taken("EXISTS")]

    def _taken(self, what: str, first: bytes = b"") -> list[Command]:
        found = [command for command in self.seen if command.what == what and first in (b"", command.arguments[0])]
        self.seen = [command for command in self.seen if command not in found]
        return found

    def _grant(self) -> None:
        self.serve()

    def hold(self, name: str | bytes, timeout: float = 30.0, **options: Any) -> Lease:
        return super().hold(name, timeout, **options)

    def hold_settled(self, name: str, **options: Any) -> Lease:
        """Hold a lock, have it registered, and forget what has arrived."""
        lease = self.hold(name, **options)
        self.pass_time(0.05)
        self.seen.clear()
        return lease

    def pass_time(self, seconds: float) -> None:
        """Let time pass with a server that answers."""
        self.go_on(seconds, self._meanwhile)
        self.serve()

    def _meanwhile(self) -> None:
        self.answer()
