"""A process's side of its keeper: the session with it, which another one replaces when the keeper has ended.

Nothing waits for the keeper. A helper thread connects to it, or starts it as a child of this process, and passes it what
it needs (see program.py); the timer's thread notices when it has gone. As long as there is none, locks of a process that
is killed expire as they do without a keeper, and one WARNING says so.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter

from wheel_lock.exclusion import Lock, exclusively
from wheel_lock.forks import in_forked_child
from wheel_lock.keeper import NEEDS, PROGRAM, is_possible
from wheel_lock.keeper.program import REGIONS, VERSION
from wheel_lock.keeper.record import RELEASES, Record
from wheel_lock.lease import Lease
from wheel_lock.net.connector import Connection, as_failure, sanitize
from wheel_lock.net.node import Node
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.resp import LONG_TEXT, error_text
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
                return sock
            except BlockingIOError:  # more connect at this moment than it has room for
                if time.monotonic() > until:
                    raise
                time.sleep(_CROWDED_S)
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


class Keeping:
    """Keeps the record of one engine, and a keeper that has it. Timer's thread only, but for what says otherwise.

    Args:
        timer: The timer of the engine.
        options: The settings of the context, of which ``release_on_crash`` says where the keeper is.
        launch: Runs what may block on another thread.
        domain: The failure domain of what is called later.

    Raises:
        ValueError: This system has no keepers.
    """

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
        self._record: Record | None = None
        self._node: Node | None = None  # whose server the keeper needs a connection to
        self._session: socket.socket | None = None
        self._connecting = False
        self._stale = False  # the server has changed since the latest attempt began
        self._closed = False
        self._warned = False
        self._full = False
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._generation = object()  # of the attempts whose results are wanted

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
        if self._full or self._closed:
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

    def connected(self, node: Node) -> None:
        """Have the keeper get a connection to the server that ``node`` has connected to."""
        self._node = node
        self._stale = True
        self._open()

    def _open(self) -> None:
        if self._connecting or self._closed or self._node is None:
            return
        record = self._record
        if record is None and (record := self._new_record()) is None:
            return
        self._connecting, self._stale = True, False
        try:
            self._launch(partial(self._attempt, self._node, self._session, record, self._generation))
        except RuntimeError as error:  # no thread can be started
            self._failed(error, self._generation)

    def _attempt(self, node: Node, session: socket.socket | None, record: Record, generation: object) -> None:
        """Open a session if there is none, and pass the keeper a connection to the server. On a helper thread."""
        opened = session
        try:
            if opened is None:
                opened = self._new_session(record)
            self._pass_server(node, opened)
        except BaseException as error:
            failure = as_failure(error)
            sanitize(failure)
            if opened is not None and opened is not session:
                _say_end(opened)  # else the keeper would keep it until this process ends
                opened.close()
            self._timer.post(partial(self._failed, failure, generation), self._domain)
        else:
            self._timer.post(partial(self._opened, opened, generation), self._domain)
            if self._timer.stopped and opened is not session:
                opened.close()  # it may have been posted behind the last turn

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
            answer = session.recv(1 << 16)
            if not answer or json.loads(answer).get("version") != VERSION:
                raise ConnectionError(
                    "the keeper has refused this process: it is of another version, or another user's"
                )
        except BaseException:
            session.close()
            raise
        return session

    def _pass_server(self, node: Node, session: socket.socket) -> None:
        connection: Connection = node.connector.connect(self._options.connect_timeout_s)
        try:
            if hasattr(connection.sock, "pending"):
                raise ConnectionError("a TLS connection cannot be passed to the keeper")
            keyed = node.declares or connection.keyed
            scripts = [release.described(connection.capability, keyed=keyed) for release in RELEASES]
            message = {"what": "server", "scripts": scripts, "most": self._options.batch_size}
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            socket.send_fds(session, [json.dumps(message).encode()], [connection.sock.fileno()])
        finally:
            connection.after_fork_in_child()  # closes this process's copy only

    def _opened(self, session: socket.socket, generation: object) -> None:
        if generation is not self._generation:
            session.close()
            return
        self._connecting = False
        self._backoff.reset()
        if session is not self._session:
            self._drop_session()
            session.setblocking(False)
            self._session = session
            self._timer.watch(session, selectors.EVENT_READ, self._heard, self._domain)
        if self._warned:
            self._warned = False
            self._log(logger.info, "keeper_found", "the keeper is there again")
        if self._stale:
            self._open()

    def _failed(self, error: Exception, generation: object) -> None:
        if generation is not self._generation:
            return
        self._connecting = False
        if not self._warned:
            self._warned = True
            self._warn(error_text(error, LONG_TEXT))
        self._timer.call_at(self._timer.now + self._backoff.pause(), lambda now: self._open(), self._domain)

    def _heard(self, events: int) -> None:
        session = self._session
        if session is None:
            return
        try:
            data = session.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop_session()
            if not self._warned:
                self._warned = True
                self._warn("it has ended; another one is looked for")
        # Else it has lost its connection to the server.
        self._timer.call_at(self._timer.now + self._backoff.pause(), lambda now: self._open(), self._domain)

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._timer.unwatch(session)
            session.close()

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
        elif how in (End.CLOSED, End.RETIRED):
            if self._record is not None and how is End.CLOSED and not self._options.release_on_close:
                self._record.clear()
            if self._session is not None and (self._record is None or self._record.empty):
                _say_end(self._session)
            # What is left in the record, the keeper releases when this process has ended.
            self._closed = how is End.CLOSED
            self._node = None
            self._leave_session()
            if self._closed:
                self._record = None
        elif how in ANEW:
            self._leave_session()

    def _leave_session(self) -> None:
        self._generation, self._connecting = object(), False
        self._drop_session()
