"""Callers who wait for locks, on the rig: how they begin and end, and the server's side of the wake-ups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.engine.rig import NIL, TAKEN, Command, Rig, ScriptedServer, agreement, array, integer
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.engine.waiting.many import AcquireEach
from wheel_lock.engine.waiting.wait_queue import BaseWaitQueue
from wheel_lock.engine.waiting.waiter import Waiter
from wheel_lock.lease import NO_OWNER, Lease, Owner
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.lock_types.base import LockType
from wheel_lock.options import lock_name, lock_options
from wheel_lock.protocol.keys import wake_channel

LINGER_S = 2.0  # time for which a queue and its subscription outlive their last waiter


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
    """What subscribers of a channel get when something is published there."""
    return array("message", channel.decode(), "0")


class Wait(NamedTuple):
    """A caller's wait for one lock."""

    name: str
    acquisition: FirstTry | Waiter
    future: Future[Sequence[Lease] | None]

    @property
    def goes_on(self) -> bool:
        """Whether its caller waits still."""
        return not self.future.done and not self.over

    @property
    def waiter(self) -> Waiter | None:
        """What goes on with the wait, or None as long as it is its first attempt."""
        return self.acquisition._waiter if isinstance(self.acquisition, FirstTry) else self.acquisition

    @property
    def over(self) -> bool:
        """Whether it is over for the engine."""
        if self.waiter is None:
            assert isinstance(self.acquisition, FirstTry)
            return self.acquisition.finished
        return self.waiter.over

    @property
    def request(self) -> Acquire:
        """Its latest attempt."""
        if self.waiter is None:
            assert isinstance(self.acquisition, FirstTry)
            return self.acquisition
        return self.waiter.request

    @property
    def error(self) -> Exception | None:
        return self.future.error

    @property
    def granted(self) -> bool:
        return self._ended_well and self.future.result() is not None

    @property
    def refused(self) -> bool:
        """Whether it ended without a grant, and without an error."""
        return self._ended_well and self.future.result() is None

    @property
    def _ended_well(self) -> bool:
        return self.future.done and self.future.error is None

    @property
    def lease(self) -> Lease:
        """What was granted."""
        assert self.future.done
        leases = self.future.result()
        assert leases is not None
        (lease,) = leases
        return lease


class WaitingRig(Rig):
    """A rig whose callers wait.

    Attributes:
        commands: What the server was asked on the way of locks, in order, where it answered by itself.
        heard: What has arrived on connections for wake-ups, in order.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: list[Command] = []
        self.heard: list[tuple[str, ...]] = []
        self._subscriptions: dict[ScriptedServer, Subscriptions] = {}

    # -- what callers ask for ----------------------------------------------------------------------------------------

    def waiter(
        self,
        name: str,
        timeout: float = 3.0,
        *,
        kind: LockType = EXCLUSIVE,
        owner: Owner = NO_OWNER,
        blocking_timeout: float | None = None,
        token: str | None = None,
        notify: Callable[[], object] = lambda: None,
        **terms: Any,
    ) -> Wait:
        """A wait that has not begun; ``notify()`` is called when it ends."""
        options = lock_options(timeout, **terms)
        lease = self.lease(name, timeout, kind=kind, owner=owner, token=token, **terms)
        until = None if blocking_timeout is None else self.now + blocking_timeout
        future: Future[Sequence[Lease] | None] = Future(notify)
        given, blocking = token is not None, options.blocking
        acquisition = self.engine.new_wait(options, lease, lease.key, given, blocking, until, future)
        wait = Wait(name, acquisition, future)
        lease.on_lost = lambda event: self._note(wait.lease, event)
        return wait

    def wait(self, name: str, timeout: float = 3.0, **terms: Any) -> Wait:
        """Begin to wait for a lock."""
        wait = self.waiter(name, timeout, **terms)
        self.post(wait.acquisition.begin)
        return wait

    def wait_for_each(self, names: Sequence[str], timeout: float = 3.0, limit_s: float | None = None) -> AcquireEach:
        """Begin to wait for many locks by one call."""
        call = AcquireEach(self.engine.wait_queues, lock_options(timeout), Future(lambda: None))
        leases = [self.lease(name, timeout) for name in names]
        self.post(lambda: (call.begin(len(leases), limit_s), call.add(leases), call.seal()))
        return call

    def wait_first(self, name: str, timeout: float = 3.0, **terms: Any) -> Wait:
        """Begin to wait for a lock that another caller holds, and be refused until there is nothing but to listen."""
        wait = self.wait(name, timeout, **terms)
        self.refuse()
        self.listen()
        self.refuse()
        assert self.server.take() == []
        assert self.first(name) is wait.waiter
        return wait

    def hold_first(self, name: str, timeout: float = 3.0, **terms: Any) -> Wait:
        """Wait for a lock, and get it."""
        wait = self.wait_first(name, timeout, **terms)
        self.wake(name)
        self.grant(wait)
        return wait

    def grant(self, wait: Wait) -> None:
        """Grant the attempt of a waiter, which is under way and the only one."""
        [command] = self.server.take()
        assert command.what in ("SET", "acquire")
        self.say(agreement(command))
        assert wait.granted

    def let_go(self, wait: Wait, listeners: int = 1) -> list[str]:
        """Have the holder release the lock and the server agree; return what was sent for it in one turn."""
        self.timer.post(lambda: self.engine.release(wait.lease, Future(lambda: None)), self.engine)
        self.timer.turn()
        commands = [command.what for command in self.server.take()]
        self.say(integer(1 + listeners))
        return commands

    def give_up(self, wait: Wait) -> None:
        self.post(wait.acquisition.give_up)

    # -- the server --------------------------------------------------------------------------------------------------

    @property
    def listener(self) -> ScriptedServer:
        """The other end of the newest connection for wake-ups."""
        return self.connector.listeners.servers[-1]

    def refuse(self, remaining_ms: int = 30_000) -> list[Command]:
        """Refuse whatever has been asked for on the newest connection, because another caller holds it for so long."""
        commands = self.server.take()
        for command in commands:
            self.server.say(NIL if command.what == "SET" else array(remaining_ms))
        self.turn()
        return commands

    def listen(self) -> list[tuple[str, ...]]:
        """Answer what has arrived on connections for wake-ups, and turn; return it."""
        heard: list[tuple[str, ...]] = []
        for server in self.connector.listeners.servers:
            if commands := server.take():
                known = self._subscriptions.setdefault(server, Subscriptions())
                server.say(*[known.reply(command) for command in commands])
                heard += [(command.what, *[word.decode() for word in command.arguments]) for command in commands]
        self.heard += heard
        self.turn()
        return heard

    def wake(self, name: str) -> None:
        """Tell the listeners that the lock has been released."""
        self.listener.say(message(wake_channel(lock_name(name, b""))))
        self.turn()

    def agree(self) -> None:
        """Grant whatever has arrived."""
        self._answer(agreement)

    def be_taken(self, remaining_ms: int = 30_000) -> Callable[[], None]:
        """Return what answers as a server does where a stranger holds every lock."""

        def reply(command: Command) -> bytes:
            if command.what == "SET":
                return NIL
            if command.what == "acquire_many":
                return array(*[word for number, _ in enumerate(command.pairs, 1) for word in (number, TAKEN)])
            if command.what == "acquire_all":
                return array(1, remaining_ms)
            return array(remaining_ms) if command.what in ("acquire", "acquire_fenced") else agreement(command)

        return lambda: self._answer(reply)

    def _answer(self, reply: Callable[[Command], bytes]) -> None:
        for server in self.connector.servers:
            if commands := server.take():
                self.commands += commands
                server.say(*[reply(command) for command in commands])
        self.listen()

    # -- what can be seen --------------------------------------------------------------------------------------------

    def line(self, name: str) -> BaseWaitQueue | None:
        """The line for a name, if there is one."""
        return self.engine.wait_queues.queues.get(EXCLUSIVE.queue_key(lock_name(name, b"")))

    def first(self, name: str) -> Waiter | None:
        line = self.line(name)
        return next(iter(line), None) if line is not None else None

    @property
    def waiting(self) -> int:
        return self.engine.wait_queues.count

    def assert_clean(self) -> None:
        """Fail unless nothing is left of those who waited, once everything has lingered for long enough."""
        assert self.waiting == 0
        self.drain()  # wait for callbacks that run in real time
        self.go_on(LINGER_S + 0.1, self.agree)
        assert len(self.engine.wait_queues) == 0
        self.go_on(LINGER_S + 0.1, self.agree)
        there = [known for server, known in self._subscriptions.items() if not (server.hung_up or server.closed)]
        assert not any(known.channels for known in there)
        assert not self.engine.busy
        assert self.engine.leases.acquiring == 0
        assert self.engine.wait_queues.in_flight == {}
        if not self.engine.leases.held:
            assert len(self.timer.wheel) == 0
