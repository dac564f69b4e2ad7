"""A process's side of its keeper: the session with it, which another one replaces when the keeper has ended.

Nothing waits for the keeper. A helper thread connects to it, or starts it as a child of this process, and passes it what
it needs (see program.py); the timer's thread notices when it has gone. As long as there is none, locks of a process that
is killed expire as they do without a keeper, and one WARNING says so.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from wheel_lock.exclusion import Lock, exclusively
from wheel_lock.forks import in_forked_child
from wheel_lock.keeper import NEEDS, PROGRAM, is_possible
from wheel_lock.keeper.entries import REGIONS
from wheel_lock.keeper.phase import ATTEMPTING, NEXT, Phase, Sign
from wheel_lock.keeper.program import VERSION, user_of
from wheel_lock.keeper.record import RELEASES, Record
from wheel_lock.lease import Lease
from wheel_lock.net.connector import Connection, as_failure, sanitize
from wheel_lock.net.node import Node
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.resp import LONG_TEXT, error_text
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.backoff import Backoff
from wheel_lock.runtime.ends import ANEW, End
from wheel_lock.runtime.failures import FailureDomain
from wheel_lock.runtime.native import RLock
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import HashedWheelTimer

logger: logging.Logger = logging.getLogger("wheel_lock")

_ANSWER_S = 20.0  # the longest wait for the keeper, or for its start, on a machine that is overloaded
_CROWDED_S = 0.01  # between two attempts at a socket with too many that connect
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 30.0  # between two attempts to reach it
_MOST_BYTES = 1 << 16  # of a message of the keeper
_timeout_s_of: Callable[[Lease], float] = attrgetter("group.timeout_s")


class _Child:
    """The keeper that is a child of this process, for all of its contexts. From helper threads.

    Attributes:
        lock: Held while one is started.
        address: The address of its socket, which has no name in the file system; None before it is started.
    """

    def __init__(self) -> None:
        self.lock: Lock = RLock()
        self.address: bytes | None = None

    def connect(self) -> socket.socket:
        """Return a connection to it; start it if there is none."""
        return exclusively(self.lock, self._connect)

    def _connect(self) -> socket.socket:
        if self.address is not None:
            try:
                return _connected(self.address)
            except ConnectionRefusedError:
                pass  # it has ended
        self._start()
        assert self.address is not None
        return _connected(self.address)

    def _start(self) -> None:
        parent = os.pidfd_open(os.getpid())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(b"")  # the system chooses an address
                listener.listen(socket.SOMAXCONN)
                subprocess.run(
                    [sys.executable, "-I", "-S", os.fspath(PROGRAM), str(listener.fileno()), str(parent)],
                    pass_fds=[listener.fileno(), parent],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    timeout=_ANSWER_S,
                    check=True,
                )
                self.address = listener.getsockname()
        finally:
            os.close(parent)


def _connected(address: str | bytes) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    until = time.monotonic() + _ANSWER_S
    try:
        sock.settimeout(_ANSWER_S)
        while True:
            try:
                sock.connect(address)
                break
            except BlockingIOError:  # more connect at this moment than it has room for
                if time.monotonic() > until:
                    raise
                time.sleep(_CROWDED_S)
        if user_of(sock) != os.getuid():  # who would get connections that are authenticated
            raise PermissionError("what listens there is another user's")
        return sock
    except BaseException:
        sock.close()
        raise


def _say_end(session: socket.socket) -> None:
    """Say that nothing of this session is to be released; what its record says does not depend on it."""
    try:
        session.send(json.dumps({"what": "end"}).encode())
    except OSError:
        pass  # it has ended, or is stopped


CHILD: _Child = _Child()


@in_forked_child
def _free_child() -> None:
    """Let a forked child connect to the keeper, or start one, whatever another thread of its parent was about to do."""
    CHILD.lock = RLock()


class _Place(NamedTuple):
    """A node, as the keeper knows it.

    Attributes:
        number: Its number in this session.
        node: The node.
        names: The addresses by which other nodes of its cluster name it.
    """

    number: int
    node: Node
    names: tuple[str, ...]


class _Attempt:
    """An attempt to pass the keeper what it needs.

    Attributes:
        session: The session; None before it is opened, and if it was broken.
        record: The record.
        places: What is to be passed, and in the end what was not.
        gone: The numbers of what is not used any more.
        failure: Why something was not passed; None if all was.
    """

    def __init__(
        self, session: socket.socket | None, record: Record, places: list[_Place], gone: Sequence[int]
    ) -> None:
        self.session: socket.socket | None = session
        self.record: Record = record
        self.places: list[_Place] = places
        self.gone: Sequence[int] = gone
        self.failure: Exception | None = None

    def fail(self, error: BaseException) -> None:
        """Note why something was not passed."""
        self.failure = as_failure(error)
        sanitize(self.failure)

    def end_session(self) -> None:
        """Have the keeper forget the session."""
        session, self.session = self.session, None
        if session is not None:
            _say_end(session)
            session.close()


class Keeping:
    """Keeps the record of one engine, and a keeper that has it. Timer's thread only, but for what says otherwise.

    Args:
        timer: The timer of the engine.
        options: The settings of the context, of which ``release_on_crash`` says where the keeper is.
        launch: Runs what may block on another thread.
        domain: The failure domain of what is called later.

    Attributes:
        phase: That of its session.

    Raises:
        ValueError: This system has no keepers.
    """

    phase: Phase

    def __init__(
        self,
        timer: HashedWheelTimer,
        options: ContextOptions,
        launch: Callable[[Callable[[], None]], None],
        domain: FailureDomain,
    ) -> None:
        if not is_possible():
            raise ValueError(f"release_on_crash {NEEDS}")
        self._timer = timer
        self._options = options
        self._launch = launch
        self._domain = domain
        self._reset()

    def _reset(self) -> None:
        self.phase = Phase.ABSENT
        self._record: Record | None = None
        self._full = False  # the record, or the memory for one, so that a lease was not recorded
        self._session: socket.socket | None = None
        self._numbers = itertools.count()
        self._places: dict[Node, _Place] = {}  # whose servers the keeper needs connections to
        self._due: dict[Node, None] = {}  # those of which it has none, or one to an earlier server
        self._gone: list[int] = []  # the numbers of those that are not used any more
        self._alarm: Alarm | None = None
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._life = object()  # of the attempts whose results are wanted

    # -- the record; begin() and drop() also from the threads of callers on the direct path --------------------------

    def begin(self, leases: Iterable[Lease]) -> None:
        """Record the leases that a command may grant, before it is sent."""
        record = self._record
        if record is None:
            record = self._new_record()
        if record is not None:
            record.begin(leases)

    def drop(self, leases: Sequence[Lease]) -> None:
        """End the entries of leases whose tokens are no more at the server, or are another process's from now on."""
        if self._record is not None:
            self._record.end(leases)

    def drop_later(self, leases: Sequence[Lease]) -> None:
        """End the entries of leases of which nothing is known when their keys have expired."""
        if self._record is not None and leases:
            now = self._timer.now
            until = max(max(now + _timeout_s_of(lease), lease.max_expiry) for lease in leases)
            self._timer.call_at(until, lambda at: self.drop(leases), self._domain)

    def _new_record(self) -> Record | None:
        if self._full or self.phase is Phase.CLOSED:
            return None
        try:
            self._record = Record(self._on_full)
        except OSError as error:
            self._full = True
            self._warn(f"there is no memory for the record: {error}")
        return self._record

    def _on_full(self) -> None:
        if not self._full:
            self._full = True
            self._warn("the record has no room for more locks")

    # -- the session -------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """True if the keeper has all that it needs. From any thread."""
        return self.phase is Phase.KEPT and not self._due

    def connected(self, node: Node) -> None:
        """Have the keeper get a connection to the server that ``node`` has connected to."""
        place = self._places.get(node)
        self._add(node, (":".join(map(str, node.server or ())),) if place is None else place.names)
        self._note(Sign.DUE)

    def use(self, nodes: Mapping[Node, tuple[str, ...]]) -> None:
        """Have the keeper get connections to the servers of these nodes, and of no others.

        Args:
            nodes: For each node the addresses by which other nodes of its cluster name it.
        """
        for node in [node for node in self._places if node not in nodes]:
            self._gone.append(self._places.pop(node).number)
            self._due.pop(node, None)
        for node, names in nodes.items():
            place = self._places.get(node)
            if place is None or place.names != names:
                self._add(node, names)
        if self._due or self._gone:
            self._note(Sign.DUE)

    def _add(self, node: Node, names: tuple[str, ...]) -> None:
        number = self._places[node].number if node in self._places else next(self._numbers)
        self._places[node] = _Place(number, node, names)
        self._due[node] = None

    def _note(self, sign: Sign, why: str = "") -> None:
        before, phase = self.phase, NEXT.get((self.phase, sign))
        if phase is None:
            return
        self.phase = phase
        if phase in ATTEMPTING:
            self._begin()
        elif phase in (Phase.PAUSING, Phase.MISSING):
            if self._alarm is None:
                until = self._timer.now + self._backoff.pause()
                self._alarm = self._timer.call_at(until, self._on_alarm, self._domain)
            if phase is Phase.MISSING and before is not Phase.RETRYING:
                self._warn(why)
        elif before is Phase.RETRYING and phase is Phase.KEPT:
            self._log(logger.info, "keeper_found", "the keeper is there again")

    def _on_alarm(self, now: float) -> None:
        self._alarm = None
        self._note(Sign.ALARM)

    def _begin(self) -> None:
        """Begin an attempt. It has the session for itself: another thread might close it in the middle of a call."""
        self._timer.cancel(self._alarm)
        self._alarm = None
        record = self._record or self._new_record()
        if record is None:
            return  # without memory there is nothing to keep
        session, due, gone = self._session, self._due, self._gone
        self._due, self._gone = {}, []
        if session is None:
            due, gone = dict.fromkeys(self._places), []
        else:
            self._timer.unwatch(session)
        attempt = _Attempt(session, record, [self._places[node] for node in due], gone)
        try:
            self._launch(partial(self._attempt, attempt, self._life))
        except RuntimeError as error:  # no thread can be started
            attempt.failure = error
            self._over(attempt, self._life)

    def _attempt(self, attempt: _Attempt, life: object) -> None:
        """Open a session if there is none, and pass the keeper connections to servers. On a helper thread."""
        try:
            if attempt.session is None:
                attempt.session = self._new_session(attempt.record)
            attempt.session.settimeout(_ANSWER_S)
            for number in attempt.gone:
                attempt.session.send(json.dumps({"what": "leave", "node": number}).encode())
            for place in list(attempt.places):
                if (connection := self._connect(place, attempt)) is not None:
                    self._pass_server(place, connection, attempt.session)
                    attempt.places.remove(place)
        except BaseException as error:
            attempt.fail(error)
            attempt.end_session()  # else the keeper would keep it until this process ends, beside another one
        self._timer.post(partial(self._over, attempt, life), self._domain)
        if self._timer.stopped and attempt.session is not None:
            attempt.session.close()  # the message may have been posted behind the last turn

    def _connect(self, place: _Place, attempt: _Attempt) -> Connection | None:
        """Return a new connection; None if there is none now. What others are passed does not depend on it."""
        try:
            # A listener's, because nothing is granted on it: a quorum takes another kind for a sign of a restart.
            connection: Connection = place.node.connector.listener().connect(self._options.connect_timeout_s)
        except BaseException as error:
            attempt.fail(error)
            return None
        return connection

    def _new_session(self, record: Record) -> socket.socket:
        where = self._options.release_on_crash
        session = CHILD.connect() if where is True else _connected(str(where))
        try:
            hello = {
                "what": "begin",
                "version": VERSION,
                "regions": REGIONS,
                "delay_s": self._options.release_delay_s,
            }
            proof = os.pidfd_open(os.getpid())
            try:
                socket.send_fds(session, [json.dumps(hello).encode()], [proof, record.file])
            finally:
                os.close(proof)
            answer = session.recv(_MOST_BYTES)
            if not answer or json.loads(answer).get("version") != VERSION:
                raise ConnectionError(
                    "the keeper has refused this process: it is of another version, or another user's"
                )
        except BaseException:
            session.close()
            raise
        return session

    def _pass_server(self, place: _Place, connection: Connection, session: socket.socket) -> None:
        node = place.node
        try:
            if hasattr(connection.sock, "pending"):
                raise ConnectionError("a TLS connection cannot be passed to the keeper")
            scripts = [release.described(node.capability, keyed=node.declares) for release in RELEASES]
            message = {"what": "server", "node": place.number, "names": place.names}
            message |= {"scripts": scripts, "most": self._options.batch_size}
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            socket.send_fds(session, [json.dumps(message).encode()], [connection.sock.fileno()])
        finally:
            connection.after_fork_in_child()  # closes this process's copy only

    def _over(self, attempt: _Attempt, life: object) -> None:
        """Take the session back from an attempt."""
        session = attempt.session
        if life is not self._life:
            if attempt.record.empty:
                attempt.end_session()
            elif session is not None:
                session.close()
            return
        self._session = session
        if session is None:
            self._due = dict.fromkeys(self._places)
        else:
            self._due |= {place.node: None for place in attempt.places if place.node in self._places}
            session.setblocking(False)
            self._timer.watch(session, selectors.EVENT_READ, self._heard, self._domain)
        if attempt.failure is not None:
            self._note(Sign.FAILED, error_text(attempt.failure, LONG_TEXT))
            return
        self._backoff.reset()
        self._note(Sign.PASSED)
        if self._due or self._gone:  # since it began
            self._note(Sign.DUE)

    def _heard(self, events: int) -> None:
        session = self._session
        if session is None or self.phase in ATTEMPTING:
            return
        try:
            data = session.recv(_MOST_BYTES)
            number = json.loads(data)["node"] if data else None
        except BlockingIOError:
            return
        except (OSError, ValueError, LookupError, TypeError):
            number = None
        if number is None:
            self._timer.unwatch(session)
            session.close()
            self._session = None
            self._note(Sign.ENDED, "it has ended; another one is looked for")
        elif lost := [node for node, place in self._places.items() if place.number == number]:
            self._due |= dict.fromkeys(lost)
            self._note(Sign.LOST)

    def _warn(self, why: str) -> None:
        text = "no keeper: if this process is killed, locks stay until their timeouts: %s"
        self._log(logger.warning, "no_keeper", text, why)

    def _log(self, log: Callable[..., object], event: str, text: str, *arguments: str) -> None:
        reason = arguments[0] if arguments else None
        NOTIFIER.post(partial(log, extra=log_fields(event, reason=reason)), text, *arguments)

    # -- ends --------------------------------------------------------------------------------------------------------

    def end(self, how: End, error: Exception) -> None:
        """End the session of a closed context; begin anew, with an empty record, in a forked child."""
        if how is End.FORKED:
            session, record = self._session, self._record
            self._reset()
            if session is not None:
                os.close(session.detach())
            if record is not None:
                record.leave()
        elif how in (End.CLOSED, End.RETIRED, *ANEW):
            if self._record is not None and how is End.CLOSED and not self._options.release_on_close:
                self._record.clear()
            # What is left in the record, the keeper releases when this process has ended.
            self._leave()
            self._note(Sign.CLOSED if how is End.CLOSED else Sign.RETIRED)
            if how is End.CLOSED:
                self._record = None

    def _leave(self) -> None:
        self._life = object()
        self._timer.cancel(self._alarm)
        self._alarm = None
        self._due, self._gone = {}, []
        session, self._session = self._session, None
        if session is not None and self.phase not in ATTEMPTING:  # else the attempt closes it
            self._timer.unwatch(session)
            if self._record is None or self._record.empty:
                _say_end(session)
            session.close()
