"""A process's side of its keeper: the session with it, which another one replaces when the keeper has ended.

Nothing waits for the keeper. A helper thread connects to it, or starts it as a child of this process, and passes it what
it needs (see program.py); the timer's thread notices when it has gone. As long as there is none, locks of a process that
is killed expire as they do without a keeper, and one WARNING says so.
"""

from __future__ import annotations

import enum
import errno
import itertools
import json
import logging
import os
import selectors
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from wheel_lock.errors import LossReason
from wheel_lock.keeper import NEEDS, is_possible
from wheel_lock.keeper.child import ANSWER_S, CHILD, connected
from wheel_lock.keeper.entries import REGIONS
from wheel_lock.keeper.program import VERSION
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
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import HashedWheelTimer

logger: logging.Logger = logging.getLogger("wheel_lock")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 30.0  # between two attempts to reach it, or a server
_CALM_S = 5.0  # for which a connection has lasted, when the pauses begin anew
_MOST_BYTES = 1 << 16  # of a message of the keeper
_timeout_s_of: Callable[[Lease], float] = attrgetter("group.timeout_s")


class Phase(enum.Enum):
    """A phase of the session with the keeper. The whole of what it decides is the table `NEXT`."""

    ABSENT = enum.auto()  # there is none, and nothing to pass
    REACHING = enum.auto()  # a helper thread opens it, or passes servers in it
    KEPT = enum.auto()  # the keeper has all that it needs, or gets connections that it lacks after a pause
    MISSING = enum.auto()  # the keeper cannot be reached, or has ended; another attempt comes after a pause
    RETRYING = enum.auto()  # the same as REACHING, after that
    CLOSED = enum.auto()


class Sign(enum.Enum):
    """An event after which the session may be in another phase."""

    DUE = enum.auto()  # a server is to be passed, or another is not used any more
    ALARM = enum.auto()  # the pause is over
    PASSED = enum.auto()  # the attempt has succeeded, but for servers that cannot be connected to now
    FAILED = enum.auto()  # the attempt has failed: there is no session
    LOST = enum.auto()  # the keeper has lost its connection to a server
    ENDED = enum.auto()  # the keeper has ended
    RETIRED = enum.auto()  # nothing is held, or all of it is lost
    CLOSED = enum.auto()


# What has no line here changes nothing.
NEXT: dict[tuple[Phase, Sign], Phase] = {
    (Phase.ABSENT, Sign.DUE): Phase.REACHING,
    (Phase.REACHING, Sign.PASSED): Phase.KEPT,
    (Phase.REACHING, Sign.FAILED): Phase.MISSING,
    (Phase.KEPT, Sign.DUE): Phase.REACHING,
    (Phase.KEPT, Sign.ALARM): Phase.REACHING,
    (Phase.KEPT, Sign.LOST): Phase.KEPT,
    (Phase.KEPT, Sign.ENDED): Phase.MISSING,
    (Phase.MISSING, Sign.DUE): Phase.RETRYING,
    (Phase.MISSING, Sign.ALARM): Phase.RETRYING,
    (Phase.RETRYING, Sign.PASSED): Phase.KEPT,
    (Phase.RETRYING, Sign.FAILED): Phase.MISSING,
}
for _phase in set(Phase) - {Phase.CLOSED}:
    NEXT[_phase, Sign.RETIRED] = Phase.ABSENT
    NEXT[_phase, Sign.CLOSED] = Phase.CLOSED


class _Pauses(Backoff):
    """The pauses before attempts at a connection. They grow until one has lasted for a while."""

    def __init__(self) -> None:
        super().__init__(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self.since: float | None = None  # the connection

    def next(self, now: float) -> float:
        """Return the next pause in seconds; the connection has ended, or there is none."""
        if self.since is not None and now - self.since >= _CALM_S:
            self.reset()
        self.since = None
        return self.pause()


@dataclass(eq=False)
class _Place:
    """A node, as the keeper knows it."""

    number: int  # in this session
    node: Node
    names: tuple[str, ...]  # the addresses by which other nodes of its cluster name it
    pauses: _Pauses = field(default_factory=_Pauses)  # before attempts at a connection for the keeper
    due_at: float | None = 0.0  # from when on it is to be passed, or passed anew; 0 is now, None is not
    lacking: bool = False  # it was said that the keeper has no connection to it

    def lose(self, now: float) -> None:
        """Have it passed anew after a pause, unless that is due already."""
        if self.due_at is None:
            self.due_at = now + self.pauses.next(now)


@dataclass(eq=False)
class _Attempt:
    """An attempt to pass the keeper what it needs."""

    session: socket.socket | None  # None before it is opened, and if it was broken
    record: Record
    places: Sequence[_Place]  # what is to be passed
    gone: Sequence[int]  # the numbers of what is not used any more
    connection: Connection | None = None  # that is being passed
    lacking: dict[_Place, Exception] = field(default_factory=dict)  # those that there was no connection to, and why
    failure: Exception | None = None  # why there is no session, or nothing was sent in it


def _reason(error: BaseException) -> Exception:
    failure = as_failure(error)
    sanitize(failure)
    return failure


def _leave(session: socket.socket, record: Record | None) -> None:
    """End a session without any wait; while leases in the record may still be granted, the keeper has it.

    If the message does not reach the keeper, that keeps the record.
    """
    message: dict[str, object] = {"what": "end"}
    if record is not None and not record.empty:
        message = {"what": "expire", "in_s": record.longest_s}
    session.setblocking(False)
    try:
        session.send(json.dumps(message).encode())
    except OSError:
        pass  # it has ended, or is stopped
    session.close()


class Keeping:
    """Keeps the record of one engine, and a keeper that has it. Timer's thread only, but for what says otherwise.

    Raises:
        ValueError: This system has no keepers.
    """

    def __init__(
        self,
        timer: HashedWheelTimer,
        options: ContextOptions,
        launch: Callable[[Callable[[], None]], None],
        domain: FailureDomain,
        held: Callable[[], Iterable[Lease]],
    ) -> None:
        if not is_possible():
            raise ValueError(f"release_on_crash {NEEDS}")
        self._timer = timer
        self._options = options
        self._launch = launch  # runs what may block on another thread
        self._domain = domain
        self._held = held  # returns what the engine holds: there may have been no memory for a record at the grant
        self._reset()

    def _reset(self) -> None:
        self.phase: Phase = Phase.ABSENT
        self._full = False  # the record, so that a lease was not recorded
        self._record: Record | None = None
        self._new_record()
        self._session: socket.socket | None = None  # unless an attempt has it
        self._numbers = itertools.count()
        self._places: dict[Node, _Place] = {}  # whose servers the keeper needs connections to
        self._gone: list[int] = []  # the numbers of those that are not used any more
        self._alarm: Alarm | None = None
        self._pauses = _Pauses()
        self._attempt: _Attempt | None = None  # the one whose result is wanted
        self._attempts: list[_Attempt] = []  # all that are running

    # -- the record; begin() and drop() also from the threads of callers on the direct path --------------------------

    def begin(self, leases: Sequence[Lease]) -> None:
        """Record the leases that a command may grant, all of one group, before it is sent."""
        if (record := self._record) is not None:  # read once: the context may be closed meanwhile
            try:
                record.begin(leases)
            except (TypeError, ValueError):
                if record is self._record:  # else a fork came in between, and its memory is closed in the child
                    raise

    def drop(self, leases: Sequence[Lease]) -> None:
        """End the entries of leases whose tokens are no more at the server."""
        if (record := self._record) is not None:
            try:
                record.end(leases)
            except (TypeError, ValueError):
                if record is self._record:  # as above
                    raise

    def hand_over(self, lease: Lease) -> None:
        """End the entry of a lease whose token is another process's from now on."""
        if (record := self._record) is not None:
            record.hand_over(lease)

    def drop_later(self, leases: Sequence[Lease]) -> None:
        """End the entries of leases of which nothing is known when their keys have expired.

        A dropped lock of a context that leaves its locks to expire is left now: a keeper cannot tell an exit from a crash.
        """
        if not self._options.release_on_close:
            self.drop([lease for lease in leases if lease.loss is LossReason.ABANDONED])
        if self._record is not None and leases:
            now = self._timer.now
            until = max(max(now + _timeout_s_of(lease), lease.max_expiry) for lease in leases)
            self._timer.call_at(until, lambda at: self.drop(leases), self._domain)

    def _new_record(self) -> str:
        """Have a record; return why there is no memory for one, or nothing. The next attempt at a session asks again."""
        try:
            self._record = Record(self._on_full)
        except OSError as error:
            return f"there is no memory for the record: {error}"
        return ""

    def _on_full(self) -> None:
        if not self._full:
            self._full = True
            self._warn("the record has no room for more locks")

    # -- the session -------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """True if the keeper has all that it needs. From any thread."""
        return self.phase is Phase.KEPT and not (self._due or self._gone)

    @property
    def _due(self) -> list[_Place]:
        """What the keeper has no connection to, or one to an earlier server."""
        return [place for place in list(self._places.values()) if place.due_at is not None]

    def connected(self, node: Node) -> None:
        """Have the keeper get a connection to the server that ``node`` has connected to."""
        place = self._places.get(node)
        self._add(node, (":".join(map(str, node.server or ())),) if place is None else place.names)
        self._note(Sign.DUE)

    def use(self, nodes: Mapping[Node, tuple[str, ...]]) -> None:
        """Have the keeper get connections to the servers of these nodes, and of no others.

        For each there are the addresses by which other nodes of its cluster name it.
        """
        for node in [node for node in self._places if node not in nodes]:
            self._gone.append(self._places.pop(node).number)
        for node, names in nodes.items():
            place = self._places.get(node)
            if place is None or place.names != names:
                self._add(node, names)
        if self._due or self._gone:
            self._note(Sign.DUE)

    def _add(self, node: Node, names: tuple[str, ...]) -> None:
        place = self._places[node] = self._places.get(node) or _Place(next(self._numbers), node, names)
        place.names, place.due_at = names, 0.0

    def _note(self, sign: Sign, why: str = "") -> None:
        before, phase = self.phase, NEXT.get((self.phase, sign))
        if phase is None:
            return
        self.phase = phase
        if phase in (Phase.REACHING, Phase.RETRYING):
            self._begin()
        elif phase in (Phase.KEPT, Phase.MISSING) and not self.complete:
            due = [place.due_at for place in self._due if place.due_at is not None and phase is Phase.KEPT]
            self._timer.cancel(self._alarm)
            until = min(due) if due else self._timer.now + self._pauses.next(self._timer.now)
            self._alarm = self._timer.call_at(until, self._on_alarm, self._domain)
        if phase is Phase.MISSING and before is not Phase.RETRYING:
            self._warn(why)
        if phase is Phase.KEPT and before is Phase.RETRYING:
            self._log(logger.info, log_fields("keeper_found"), "the keeper is there again")

    def _on_alarm(self, now: float) -> None:
        for place in self._due:
            if place.due_at is not None and place.due_at <= now:
                place.due_at = 0.0
        self._note(Sign.ALARM)

    def _begin(self) -> None:
        """Begin an attempt. It has the session for itself: another thread might close it in the middle of a call."""
        self._timer.cancel(self._alarm)
        if self._record is None:
            if why := self._new_record():
                self._note(Sign.FAILED, why)
                return
            for lease in self._held():
                self.begin((lease,))
        record, session = self._record, self._session
        assert record is not None
        if session is None:
            attempt = _Attempt(session, record, list(self._places.values()), ())
        else:
            attempt = _Attempt(session, record, [place for place in self._due if place.due_at == 0.0], self._gone)
            self._timer.unwatch(session)
        self._attempt = attempt
        self._attempts.append(attempt)  # before the session is let go: another thread may fork in between
        self._session, self._gone = None, []
        for place in attempt.places:
            place.due_at = None
        try:
            self._launch(partial(self._carry_out, attempt))
        except RuntimeError as error:  # no thread can be started
            attempt.lacking = dict.fromkeys(attempt.places, error)
            attempt.failure = error
            self._over(attempt)

    def _carry_out(self, attempt: _Attempt) -> None:
        """Open a session if there is none, and pass the keeper connections to servers. On a helper thread."""
        try:
            if attempt.session is None:
                self._open_session(attempt)
            session = attempt.session
            assert session is not None
            session.settimeout(ANSWER_S)
            for number in attempt.gone:
                session.send(json.dumps({"what": "leave", "node": number}).encode())
            for place in attempt.places:  # what others are passed does not depend on it
                try:
                    # A listener's, because nothing is granted on it: a quorum takes another kind for a sign of a restart.
                    connection: Connection = place.node.connector.listener().connect(self._options.connect_timeout_s)
                except BaseException as error:
                    attempt.lacking[place] = _reason(error)
                    continue
                attempt.connection = connection
                if why := self._pass_server(place, connection, session):
                    attempt.lacking[place] = ValueError(why)
                attempt.connection = None
        except BaseException as error:
            attempt.failure = _reason(error)
            if attempt.session is not None:
                _leave(attempt.session, None)  # else the keeper has it until this process ends, beside another one
            attempt.session = None
        self._timer.post(partial(self._over, attempt), self._domain)
        if self._timer.stopped and attempt.session is not None:
            attempt.session.close()  # the message may have been posted behind the last turn

    def _open_session(self, attempt: _Attempt) -> None:
        where = self._options.release_on_crash
        attempt.session = session = CHILD.connect() if where is True else connected(str(where))
        hello = {
            "what": "begin",
            "version": VERSION,
            "regions": REGIONS,
            "delay_s": self._options.release_delay_s,
        }
        proof = os.pidfd_open(os.getpid())
        try:
            socket.send_fds(session, [json.dumps(hello).encode()], [proof, attempt.record.file])
        finally:
            os.close(proof)
        answer = session.recv(_MOST_BYTES)
        if not answer or json.loads(answer).get("version") != VERSION:
            raise ConnectionError("the keeper has refused this process: it is of another version, or another user's")

    def _pass_server(self, place: _Place, connection: Connection, session: socket.socket) -> str:
        """Pass the keeper a connection; return why it does not take this one, or nothing."""
        node = place.node
        try:
            scripts = [release.described(node.capability, keyed=node.declares) for release in RELEASES]
            message = {"what": "server", "node": place.number, "names": place.names}
            message |= {"scripts": scripts, "most": self._options.batch_size}
            if (description := connection.description) is not None:
                session.send(json.dumps({**message, "tls": description}).encode())
                if not (answer := session.recv(_MOST_BYTES)):
                    raise ConnectionError("the keeper has ended")
                if (why := json.loads(answer).get("why")) is not None:
                    return f"the keeper cannot use the settings of TLS: {why}"
            elif hasattr(connection.sock, "pending"):
                return "a TLS connection cannot be passed to the keeper"
            else:
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                socket.send_fds(session, [json.dumps(message).encode()], [connection.sock.fileno()])
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            return "its settings are too long for a message to the keeper"
        finally:
            connection.after_fork_in_child()  # closes this process's copy only
        return ""

    def _over(self, attempt: _Attempt) -> None:
        """Take the session back from an attempt."""
        session, wanted = attempt.session, attempt is self._attempt
        if wanted:
            self._attempt, self._session = None, session
        elif session is not None:
            _leave(session, attempt.record)
        self._attempts = [running for running in self._attempts if running is not attempt]
        if not wanted:
            return
        if session is None:
            self._note(Sign.FAILED, error_text(attempt.failure, LONG_TEXT))
            return
        session.setblocking(False)
        self._timer.watch(session, selectors.EVENT_READ, self._heard, self._domain)
        self._pauses.since = self._timer.now
        for place in attempt.places:
            if self._places.get(place.node) is place:
                self._note_server(place, attempt.lacking.get(place))
        anew = self._gone or any(place.due_at == 0.0 for place in self._due)  # since it began
        if attempt.failure is not None:
            self._gone += attempt.gone
        self._note(Sign.PASSED)
        if anew:
            self._note(Sign.DUE)

    def _note_server(self, place: _Place, error: Exception | None) -> None:
        """Note whether the keeper has been passed a connection to a server, or why not."""
        where, lacked = place.node.connector.describe(), place.lacking
        place.lacking = error is not None
        if error is None:
            place.pauses.since = self._timer.now
            if lacked:
                text = "the keeper has a connection to %s again"
                self._log(logger.info, log_fields("keeper_found", node=where), text, where)
        else:
            place.lose(self._timer.now)
            if not lacked:
                self._warn(error_text(error, LONG_TEXT), where)

    def _heard(self, events: int) -> None:
        session = self._session
        if session is None:
            return  # an event that was read before an attempt began
        try:
            data = session.recv(_MOST_BYTES)
            number = json.loads(data)["node"] if data else None
        except BlockingIOError:
            return
        except Exception:  # whatever it has said: the failure would be the engine's
            number = None
        if number is None:
            self._timer.unwatch(session)
            session.close()
            self._session = None
            self._note(Sign.ENDED, "it has ended; another one is looked for")
        elif lost := [place for place in self._places.values() if place.number == number]:
            for place in lost:
                place.lose(self._timer.now)
            self._note(Sign.LOST)

    def _warn(self, why: str, node: str | None = None) -> None:
        text = "no keeper%s: if this process is killed, locks stay until their timeouts: %s"
        which = "" if node is None else f" for locks at {node}"
        self._log(logger.warning, log_fields("no_keeper", reason=why, node=node), text, which, why)

    def _log(self, log: Callable[..., object], fields: dict[str, object], text: str, *arguments: str) -> None:
        NOTIFIER.post(partial(log, extra=fields), text, *arguments)

    # -- ends --------------------------------------------------------------------------------------------------------

    def end(self, how: End, error: Exception) -> None:
        """End the session of a closed context; begin anew, with an empty record, in a forked child."""
        if how is End.FORKED:
            attempts, self._attempts = self._attempts, []
            for attempt in attempts:  # closes this process's copies of what the parent's thread is about to pass
                if attempt.connection is not None:
                    attempt.connection.after_fork_in_child()
            for session in (self._session, *[attempt.session for attempt in attempts]):
                if session is not None and (fd := session.detach()) >= 0:  # of both while it changes hands
                    os.close(fd)
            if self.phase is Phase.CLOSED:
                return
            record = self._record
            self._reset()
            if record is not None:
                record.leave()
        elif how in (End.CLOSED, End.RETIRED, *ANEW):
            if self._record is not None and how is End.CLOSED and not self._options.release_on_close:
                self._record.clear()
            self._timer.cancel(self._alarm)
            self._gone = []
            for place in self._places.values():
                place.due_at = None
            self._attempt = None  # it leaves the session that it has
            session, self._session = self._session, None
            if session is not None:
                self._timer.unwatch(session)
                _leave(session, self._record)  # what is left in the record is released when this process has ended
            self._note(Sign.CLOSED if how is End.CLOSED else Sign.RETIRED)
            if how is End.CLOSED:
                self._record = None
