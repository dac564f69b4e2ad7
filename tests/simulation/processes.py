"""Processes of the simulated world: a clock, a timer, contexts, and callers, which are greenlets where threads would be.

What a process does is done in one event, and nothing of another process happens meanwhile. So the callers of the public,
blocking methods run unchanged: what they wait for is a gate that lets the world go on.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from tests.simulation.event_loop import EventLoop
from tests.simulation.keepers import note_death
from tests.simulation.network import Link, SimulatedConnector, Sock
from tests.simulation.parents import Parent
from tests.simulation.record import MAJORITY
from tests.simulation.scheduler import Event, Stopped
from wheel_lock import HashedWheelTimer, LockContext
from wheel_lock.engine.engine import Engine
from wheel_lock.options import ContextOptions
from wheel_lock.quorum.context import QuorumContext
from wheel_lock.quorum.engine import QuorumEngine
from wheel_lock.quorum.node import History, Masters, NodeEngine
from wheel_lock.runtime import tokens
from wheel_lock.runtime.clock import Wakeable

if TYPE_CHECKING:
    from tests.simulation.hosts import Host
    from tests.simulation.world import World

_JOIN_S = 0.01  # polling interval for the end of a thread
_TURN_S = 0.0001  # delay from a cause to the turn
_MOST_TURNS = 8000  # limit per second: more are a hot loop
_SLOTS = 64  # size of a wheel: entries often come from beyond its rotation, and there is less to collect


class Clock:
    """A process's clock: it may run fast or slow."""

    def __init__(self, process: Process, rate: float) -> None:
        self._scheduler = process.world.scheduler
        self.rate = rate
        self._ahead_s = 1000.0

    def now(self) -> float:
        return self._ahead_s + self._scheduler.now * self.rate

    def moment_of(self, local: float) -> float:
        """Return when this clock shows ``local``."""
        return (local - self._ahead_s) / self.rate

    def sleep_s(self, remaining_s: float) -> float | None:
        return 0.0

    def attach(self, loop: Wakeable) -> None: ...


class Timer(HashedWheelTimer):
    """A timer that the world turns."""

    @property
    def has_work(self) -> bool:
        return self._unread or bool(self._poller and self._poller.poll(0.0))


class Context(LockContext):
    """A context of one simulated server, or of several that are one store.

    Attributes:
        engines: The engines whose leases are in one store, by the name of that.
        votes: The engine that counts votes, if there is one.
        holders: All engines that hold leases, by what promises these.
    """

    def __init__(self, process: Process, store: str, connector: Any, **settings: Any) -> None:
        self._client = None
        options = ContextOptions(owner=process.name, **settings)
        self._engine = Engine(connector, options, process.timer, process.launch)
        self.engines: dict[str, Engine] = {store: self._engine}
        self.votes: QuorumEngine | None = None
        self.holders = self.engines


class Master(NodeEngine):
    """The engine of one of several simulated masters; stands for ``wheel_lock.quorum.engine.NodeEngine``."""

    def __init__(self, link: Any, options: ContextOptions, timer: Any, masters: Masters) -> None:
        self.history = History(timer.clock.now, options.trust_new_nodes)
        connector = SimulatedConnector(link, on_connected=self._check)
        Engine.__init__(self, connector, options, timer, link.process.launch)
        self.node = self.router.renewer.node
        self.leases.report_lost = lambda leases: None

    def _check(self, host: Host) -> None:
        self.history.seen(host.server.run_id.decode(), host.up_s)


class MajorityContext(QuorumContext):
    """A context of several simulated masters.

    Attributes:
        engines, votes, holders: As for :class:`Context`.
    """

    def __init__(self, process: Process, hosts: Sequence[Host], longest_s: float, **settings: Any) -> None:
        options = ContextOptions(owner=process.name, longest_timeout_s=longest_s, trust_new_nodes=False, **settings)
        links: Any = [process.link(host) for host in hosts]
        self._engine = self.votes = QuorumEngine(links, options, process.timer)
        self.engines: dict[str, Engine] = {
            host.name: engine for host, engine in zip(hosts, self._engine.engines, strict=True)
        }
        self.holders = {**self.engines, MAJORITY: self.votes}


class Caller:
    """A thread of a process."""

    def __init__(self, process: Process, name: str, body: Callable[[Caller], object]) -> None:
        self.process = process
        self.name = name
        self.number = process.world.new_number()
        self.here = SimpleNamespace()  # what is local to the thread
        self.ticket = 0  # of the wait that it is in; a late end of an earlier one is passed over
        self.waits = False
        self.done = False
        self.background = False  # a thread of the library's own, in which no signal's handler runs
        self._body = body
        self._greenlet: greenlet = process.world.scheduler.spawn(self._run)

    def _run(self, begin: object = None) -> None:
        try:
            self._body(self)
        except Stopped:
            pass
        except BaseException as error:
            self.process.world.rules.broken("internal failure", f"{self.name} ended with {error!r}", error)
        finally:
            self.done = True
            self.here = SimpleNamespace()  # which ends its owner
            self.process.callers.pop(self, None)

    def resume(self, ticket: int, value: object = None) -> None:
        """Let the caller go on, unless it waits for something else by now."""
        if ticket == self.ticket and not self.done:
            self.process.run(partial(self._go_on, ticket, value))

    def _go_on(self, ticket: int, value: object) -> None:
        if ticket == self.ticket and not self.done:
            self.ticket += 1
            self._switch(self._greenlet.switch, value)

    def interrupt(self, error: BaseException) -> None:
        """Have an exception raised in the caller, if it waits."""
        if self.waits and not self.done:
            self.process.run(partial(self._interrupt, error))

    def _interrupt(self, error: BaseException) -> None:
        if self.waits and not self.done:
            self.ticket += 1
            self._switch(self._greenlet.throw, error)

    def _switch(self, switch: Callable[[Any], object], value: object) -> None:
        world = self.process.world
        before, world.caller = world.caller, self
        world.enter(self.process)
        try:
            switch(value)
        finally:
            world.caller = before
            world.enter(self.process)

    def wait(self, limit_s: float | None = None) -> object:
        """Wait until resumed, at most so many seconds; return what the resumption passes on, None after the limit."""
        process = self.process
        if process.world.over:
            raise Stopped
        ticket, event = self.ticket, None
        if limit_s is not None:
            event = process.after(limit_s, partial(self.resume, ticket))
        self.waits = True
        try:
            return process.world.scheduler.wait()
        finally:
            self.waits = False
            if event is not None:
                event.cancel()

    def end(self) -> None:
        """End the caller, wherever it waits."""
        if not self.done and self._greenlet:  # else it has not begun
            self._switch(self._greenlet.throw, Stopped())


class Thread:
    """A thread that the library starts; stands for ``threading.Thread``."""

    def __init__(
        self, world: World, target: Callable[..., object], args: Sequence[Any] = (), name: str = "", daemon: bool = True
    ) -> None:
        self._process = world.process
        self._target = partial(target, *args)
        self._name = name
        self._caller: Caller | None = None

    def start(self) -> None:
        self._caller = self._process.start(f"{self._process.name}/{self._name}", lambda caller: self._target())
        self._caller.background = True

    @property
    def ident(self) -> int | None:
        return None if self._caller is None else self._caller.number

    def is_alive(self) -> bool:
        return self._caller is not None and not self._caller.done

    def join(self, timeout: float | None = None) -> None:
        until = float("inf") if timeout is None else self._process.clock.now() + timeout
        while self.is_alive() and self._process.clock.now() < until:
            self._process.sleep(_JOIN_S)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thread) and self._caller is other._caller

    __hash__ = None  # type: ignore[assignment]


def current_thread(world: World) -> Thread:
    """Return the thread that runs; stands for ``threading.current_thread``."""
    thread = Thread(world, lambda: None)
    thread._caller = world.caller
    return thread


class Gate:
    """What a calling thread waits at; stands for ``wheel_lock.runtime.greenlets.new_gate``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open = False
        self._waiting: tuple[Caller, int] | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._open:
            caller = self._world.caller
            assert caller is not None
            self._waiting = caller, caller.ticket
            try:
                caller.wait(None if timeout < 0 else timeout)
            finally:
                self._waiting = None
        opened, self._open = self._open, False
        return opened

    def release(self) -> None:
        self._open = True
        if self._waiting is not None:
            caller, ticket = self._waiting
            caller.process.after(caller.process.delay_s(), partial(caller.resume, ticket))


class Answers:
    """What threads tell another one; stands for ``queue.SimpleQueue``."""

    def __init__(self, world: World) -> None:
        self._gate = Gate(world)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._gate.release()

    def get(self, timeout: float) -> Any:
        while not self._items:
            if not self._gate.acquire(timeout=timeout):
                raise queue.Empty
        return self._items.popleft()


class Process:
    """A process.

    Attributes:
        alive: Whether it has not been killed.
        paused: Whether it is stopped.
        stops: When it was stopped, and until when.
        turned_at: When its timer turned, by its own clock.
        wall_ahead_s: Since when its wall clock is so many seconds ahead of the true time.
        lent: Locks that its users leave to one another: those for threads, and those for tasks.
        left: Locks whose users have ended.
        forked_at: When it has forked, the last time.
        closed_at: When one of its users has begun to close a context, the last time.
        breaks: How many of its connections have ended.
    """

    def __init__(self, world: World, name: str, rate: float) -> None:
        self.world = world
        self.name = name
        self.last_fd = 1000
        self._stream = world.tape.stream(f"process/{name}")
        self.clock = Clock(self, rate)
        self.timer_here = SimpleNamespace()  # what is local to the timer's thread
        self.aio_here: Any = SimpleNamespace(bridge=lambda: None)
        world.enter(self)
        self.timer = Timer(tick_ms=10, slots=_SLOTS, clock=self.clock, threaded=False)
        self.alive = True
        self.paused = False
        self.stops: list[tuple[float, float]] = []
        self.turned_at: list[float] = []
        self.wall_ahead_s: list[tuple[float, float]] = [(0.0, 0.0)]
        self.callers: dict[Caller, None] = {}  # that have not ended: helpers come by the thousand
        self.lent: tuple[list[Any], list[Any]] = ([], [])
        self.left: list[Any] = []
        self.users = 0  # so far
        self.forked_at = -1.0
        self.closed_at = -1.0
        self.breaks = 0
        self._vanished: list[Caller] = []  # the threads that a forked child does not have
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._loop: EventLoop | None = None
        self._loop_event: Event | None = None
        self._loop_at = float("inf")
        self.contexts: list[Context | MajorityContext] = []
        self.links: dict[str, Link] = {}
        self._redis_clients: dict[Callable[[Process], Any], Any] = {}
        self._postponed: deque[Callable[[], object]] = deque()
        self._when_sent: Callable[[], object] | None = None
        self._pause_in_turn_s = 0.0
        self._pause_at: Link | None = None
        self._halted: list[greenlet] = []  # turns in the middle of which it is stopped, or was killed
        self._turn_event: Event | None = None
        self._turn_at = float("inf")
        self._turns = [0.0, 0.0]  # the second, and the turns in it

    @property
    def engines(self) -> list[Engine]:
        return [engine for context in self.contexts for engine in context.engines.values()]

    def link(self, host: Host) -> Link:
        if host.name not in self.links:
            self.links[host.name] = Link(self, host)
        return self.links[host.name]

    def redis_client(self, make: Callable[[Process], Any]) -> Any:
        """Return the process's client of a kind."""
        if make not in self._redis_clients:
            self._redis_clients[make] = make(self)
        return self._redis_clients[make]

    # -- time --------------------------------------------------------------------------------------------------------

    def after(self, delay_s: float, call: Callable[[], object]) -> Event:
        """Have ``call()`` called when so many seconds have passed by the process's clock."""
        return self.world.scheduler.after(delay_s / self.clock.rate, call)

    def sleep(self, seconds: float) -> None:
        """Let time pass for the caller that calls."""
        caller = self.world.caller
        assert caller is not None
        caller.wait(seconds)

    def sleep_until_ready(self, sock: Sock, limit_s: float) -> None:
        """Let time pass for the caller that calls, until something has arrived at its own connection."""
        caller = self.world.caller
        assert caller is not None
        go_on = partial(caller.resume, caller.ticket)
        sock.on_ready = lambda: self.world.scheduler.after(self.delay_s(), go_on)
        try:
            caller.wait(limit_s)
        finally:
            sock.on_ready = self.poke

    def delay_s(self) -> float:
        """Return how long something that is ready to run waits for the processor."""
        if not self.world.settings.slow_processes:
            return _TURN_S
        dice = self._stream.draw()
        return _TURN_S + (dice.up_to(0.03) if dice.one_in(20) else 0.0)

    # -- what it does ------------------------------------------------------------------------------------------------

    def run(self, call: Callable[[], object]) -> None:
        """Do something in the process: now, or when it goes on."""
        if self.paused:
            self._postponed.append(call)
        elif self.alive:
            self.world.enter(self)
            call()
            self.look()

    def launch(self, attempt: Callable[[], None]) -> None:
        """Run an attempt to connect on a thread of its own."""
        self.start(f"{self.name}/helper", lambda caller: attempt()).background = True

    def start(self, name: str, body: Callable[[Caller], object]) -> Caller:
        """Start a thread."""
        caller = Caller(self, name, body)
        self.callers[caller] = None
        self.world.scheduler.after(self.delay_s(), partial(caller.resume, 0))
        return caller

    def start_task(self, name: str, body: Coroutine[Any, Any, None]) -> None:
        """Start a task on the process's event loop."""
        if self._loop is None:
            self._loop = EventLoop(self)
        self.tasks[name] = self._loop.create_task(body)
        self.poke_loop()

    def poke_loop(self) -> None:
        """The event loop has something to run."""
        self._step_within(self.delay_s())

    def _step_within(self, delay_s: float) -> None:
        at = self.world.scheduler.now + delay_s
        if at < self._loop_at:
            if self._loop_event is not None:
                self._loop_event.cancel()
            self._loop_at = at
            self._loop_event = self.world.scheduler.after(delay_s, self._loop_turns)

    def _loop_turns(self) -> None:
        self._loop_event, self._loop_at = None, float("inf")
        self.run(self._step)

    def _step(self) -> None:
        assert self._loop is not None
        self._loop.step()
        if (due_s := self._loop.due_in_s) is not None:
            self._step_within(due_s / self.clock.rate + _TURN_S)

    @property
    def busy(self) -> bool:
        """Whether a thread or a task has not ended yet."""
        return bool(self.callers) or any(not task.done() for task in self.tasks.values())

    def notify(self, call: Callable[..., object], *arguments: object) -> None:
        """Have something called on a notifier's thread."""
        forked_at = self.forked_at

        def call_it() -> None:
            if forked_at == self.forked_at:
                call(*arguments)

        self.world.scheduler.after(self.delay_s(), partial(self.run, call_it))

    def poke(self) -> None:
        """Something has arrived: turn soon."""
        if self.alive and not self.paused:
            self._turn_within(self.delay_s())

    def _turn_within(self, delay_s: float) -> None:
        at = self.world.scheduler.now + delay_s
        if at < self._turn_at:
            if self._turn_event is not None:
                self._turn_event.cancel()
            self._turn_at = at
            self._turn_event = self.world.scheduler.after(delay_s, self._turn)

    def _turn(self) -> None:
        self._turn_event, self._turn_at = None, float("inf")
        if self.paused or not self.alive:
            return
        now = self.world.scheduler.now
        if now - self._turns[0] > 1.0:
            self._turns = [now, 0]
        self._turns[1] += 1
        if self._turns[1] > _MOST_TURNS and not (self.world.settings.piece or self.world.settings.room):
            self.world.rules.broken("hot loop", f"{self.name} turned {_MOST_TURNS} times within a second")
            self._turns[1] = -1e9
        self.world.enter(self)
        self.turned_at.append(self.clock.now())
        if self._pause_in_turn_s:
            self.world.scheduler.spawn(self._turn_through).switch()
        else:
            self._turn_through()

    def _turn_through(self) -> None:
        self.timer.turn()
        self.look()

    def look(self) -> None:
        """After anything was done: note what is believed, and arrange for the next turn."""
        self.world.rules.look(self)
        if not self.alive or self.paused:
            return
        if self.timer.has_work:
            self._turn_within(self.delay_s())
        elif (due := self.timer.next_due_at()) is not None:
            self._turn_within(max(self.clock.moment_of(due) - self.world.scheduler.now, 0.0) + _TURN_S)

    # -- what befalls it ---------------------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Stop the process for a while."""
        if not self.paused and self.alive:
            now = self.world.scheduler.now
            self.paused = True
            self.stops.append((now, now + seconds))
            self.world.rules.trouble(seconds)
            self.world.scheduler.after(seconds, self._go_on)

    def when_sent(self, call: Callable[[], object] | None) -> None:
        """Have ``call()`` called as soon as the process has sent something: before there is a reply."""
        self._when_sent = call

    def has_sent(self) -> None:
        """Something has been sent."""
        if self._when_sent is not None:
            self.world.scheduler.after(0.0, self._when_sent)
            self._when_sent = None

    def pause_in_turn(self, seconds: float, link: Link | None = None) -> None:
        """Stop the process for a while in the middle of a turn: when it has read the clock, and not yet a reply.

        If a ``link`` is named, only a reply that comes by that one counts.
        """
        self._pause_in_turn_s, self._pause_at = seconds, link

    def receives(self, link: Link) -> None:
        """Something is about to be received by a link."""
        if self._pause_in_turn_s and self.world.caller is None and self._pause_at in (None, link):
            seconds, self._pause_in_turn_s = self._pause_in_turn_s, 0.0
            self.world.scheduler.note("%s is stopped for %s s in the middle of a turn", self.name, seconds)
            self.world.rules.look(self)  # at what the turn has done so far
            self.pause(seconds)
            self._halted.append(getcurrent())
            self.world.scheduler.wait()
            self.world.enter(self)
            self.turned_at[-1] = self.clock.now()  # what is left of the turn is done now
            self.world.rules.look(self)  # as a caller may, ahead of what is left

    def _go_on(self) -> None:
        self.paused = False
        if self.alive and self._halted:
            self._halted.pop().switch()
        postponed, self._postponed = self._postponed, deque()
        if self.alive:
            self._turn()  # what the timer's thread does first is not certain; a check by a caller may come before it
        while postponed:  # not kept: an interruption keeps the frames that it has passed, with their locks
            self.run(postponed.popleft())

    def kill(self) -> None:
        """End the process at once."""
        self.alive = False
        note_death(self, self.world.rules.beliefs_of(self))
        self.world.rules.died(self)
        for link in self.links.values():
            for wire in list(link.wires):
                wire.hang_up(resets=False)

    def fork(self, *, parent_lives: bool) -> None:
        """Fork, in the thread that runs. The process goes on as the child, and the parent is killed, or is beside it.

        The child has nothing of the parent but its memory, and copies of what that has opened: other threads are not
        there, and what was to be reported is not.
        """
        beliefs = self.world.rules.forked(self)
        if parent_lives:
            Parent(self, beliefs)
        self.forked_at = self.world.scheduler.now
        wires = [wire for link in self.links.values() for wire in link.wires]
        for caller in list(self.callers):
            if caller is not self.world.caller:
                caller.done = True
                del self.callers[caller]
                self._vanished.append(caller)
        tokens._drawn.clear()
        self.timer._forked()
        if not parent_lives:
            for wire in wires:
                wire.hang_up(resets=False)
        self.look()

    def end(self) -> None:
        """Let go of what the history leaves over."""
        for caller in self._vanished:
            caller.done = False
        for caller in (*self._vanished, *self.callers):
            caller.end()
        for turn in self._halted:
            turn.throw()
        for task in self.tasks.values():
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                task.get_coro().close()
        if self._loop is not None:
            self._loop.close()
        self.timer.stop()
