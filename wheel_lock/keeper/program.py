"""The keeper's program: it imports the standard library only, and what is beside it, because it is started by its path.

A process that uses it (a *client*) connects to its socket and passes

* a pidfd of itself. The kernel reports by it that all of the process's threads have ended, and nothing else does: not the
  end of the connection, not silence, not a stop, not an exec. No process number is used, so none can be taken over;
* a memory file with its record: a slot for each token that a command of it may have given a lock (see record.py);
* for each server a connected, authenticated socket, and the release scripts that this server runs: for the one server,
  for the master of the moment, or for all masters of a cluster. Of a server with TLS a description (see tls.py).

When every proof of the death has come, the keeper reads the record, releases each token where it is still the holder's,
and does so again after growing pauses until the leases have expired: a command that the process had sent may arrive late.
Until then it only waits. A client's messages are JSON, one a packet; one that it does not understand ends that client's
session, and no other.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import types
from collections.abc import Hashable
from functools import partial

if __name__ == "__main__":  # what is beside it is found, and the package is not imported
    _package = sys.modules["wheel_lock.keeper"] = types.ModuleType("wheel_lock.keeper")
    _package.__path__ = [os.path.dirname(os.path.abspath(__file__))]

from wheel_lock.keeper.burial import Graves
from wheel_lock.keeper.crew import say
from wheel_lock.keeper.entries import REGIONS, Entry, read_record
from wheel_lock.keeper.server import LONG, Server
from wheel_lock.keeper.tls import TlsConnection

VERSION = 2
MOST_BYTES = 1 << 18  # of a message
MOST_FDS = 8
MOST_MESSAGES = 1000  # of one client at a time
LONGEST_DELAY_S = 1e9  # as the options have it
_SO_PEERPIDFD = 77  # Linux 6.5
_CREDENTIALS = struct.Struct("3i")


class Session:
    """The session of one client."""

    def __init__(self, control: socket.socket) -> None:
        self.control: socket.socket | None = control  # None when it has ended, which proves nothing
        self.proofs: list[int] = []  # descriptors that all become readable before the client counts as dead
        self.record: int = -1  # the memory file, behind the first message
        self.key: Hashable = None  # equal for those of the same memory file
        self.servers: dict[int, Server] = {}  # by the numbers that the client has given them
        self._delay_s = 0.0

    def begin(self, message: dict[str, object], fds: list[int]) -> None:
        """Take the first message of a client, and answer it.

        Raises:
            ValueError: It is not one that this keeper understands.
        """
        if message["version"] != VERSION or message["regions"] != [list(region) for region in REGIONS]:
            raise ValueError(f"the client speaks version {message['version']}, this keeper {VERSION}")
        if self.record >= 0 or self.control is None or len(fds) != 2:
            raise ValueError("a session begins once, with two descriptors")
        if not _is_pidfd(fds[0]):
            raise ValueError("not a pidfd")
        self._delay_s = float(str(message["delay_s"]))
        if not 0.0 <= self._delay_s <= LONGEST_DELAY_S:
            raise ValueError(f"a delay of {self._delay_s} s")
        self.proofs = [fds.pop(0)]
        self.record = fds.pop(0)
        status = os.fstat(self.record)
        self.key = status.st_dev, status.st_ino
        try:  # who has connected, as the kernel knows it
            self.proofs.append(self.control.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except OSError:
            pass  # an older kernel
        self.control.send(json.dumps({"version": VERSION}).encode())

    @property
    def watched(self) -> list[int]:
        """The descriptors by which it hears of something; -1 for a server to which there is no connection yet."""
        controls = [] if self.control is None else [self.control.fileno()]
        return [*controls, *self.proofs, *[server.sock.fileno() for server in self.servers.values()]]

    def bury(self, graves: Graves) -> None:
        """Have released what a dead client held, and end the session."""
        record, self.record = self.record, -1
        servers, self.servers = list(self.servers.values()), {}

        def read() -> list[Entry]:
            try:
                return read_record(record)
            finally:
                os.close(record)

        graves.bury(read, servers, self._delay_s)
        self.close()

    def close(self) -> None:
        for server in self.servers.values():
            server.close()
        self.servers = {}
        if self.control is not None:
            self.control.close()
            self.control = None
        for fd in [*self.proofs, self.record]:
            if fd >= 0:
                os.close(fd)
        self.proofs, self.record = [], -1


def _server(message: dict[str, object], fds: list[int]) -> Server:
    """Return the server that a message and its first descriptor are about."""
    sock = socket.socket(fileno=fds[0])  # or OSError: it is no socket
    del fds[0]
    try:
        return Server(sock, message)
    except BaseException:
        sock.close()
        raise


def _check(connection: TlsConnection, control: socket.socket) -> None:
    """Tell a client whether a connection could be made of its description now. On a thread: files may be slow."""
    answer = {"what": "taken"}
    try:
        connection.check()
    except Exception as error:  # the server is kept: when the client has died, it may be of use
        answer = {"what": "refused", "why": str(error)[:LONG] or repr(error)}
    with control:
        try:
            control.send(json.dumps(answer).encode())
        except OSError:
            pass  # it has ended, or does not read: it begins another session then


def _is_pidfd(fd: int) -> bool:
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        return b"\nPid:" in file.read()


def _has_ended(pidfd: int) -> bool:
    """Ask the kernel, now: an event that was read before may be about another descriptor with the same number."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


def user_of(control: socket.socket) -> int:
    """Return the user of the other end of a socket: who has connected, or who listens."""
    data = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(data)
    return int(user)


class Keeper:
    """Serves clients on a listening socket."""

    def __init__(self, listener: socket.socket, parent: int) -> None:
        self._listener = listener
        self._parent = parent  # a pidfd of the process for which alone it runs; -1 for a host, -2 if that has ended
        self._poll = select.epoll()  # its cost does not grow with what is watched
        self._sessions: dict[int, Session] = {}  # by each descriptor that is watched
        self._newest: dict[Hashable, Session] = {}  # the latest one of each record that has had a server
        self._graves = Graves()
        self._leaving: dict[Session, float] = {}  # those whose clients will use them no more, and when all has expired
        self._left: set[int] = set()  # descriptors that are not watched since the events of this turn were read
        self._poll.register(listener, select.EPOLLIN)
        if parent >= 0:
            self._poll.register(parent, select.EPOLLIN)

    def run(self) -> None:
        """Serve, until the parent has ended and nothing is left to do for it."""
        while self._parent != -2 or self._sessions or self._graves:
            works = self._graves.crew.go_on()
            timeout_s = 1.0 if self._leaving or not works or (self._parent == -2 and self._graves) else None
            self._left.clear()
            for fd, _ in self._poll.poll(timeout_s):
                if fd in self._left:
                    continue  # its number may be that of another client's by now, of which the event says nothing
                session = self._sessions.get(fd)
                try:
                    if fd == self._listener.fileno():
                        self._accept()
                    elif fd == self._parent:
                        self._poll.unregister(fd)
                        self._parent = -2
                    elif session is not None:
                        self._ready(session, fd)
                except Exception as error:  # of one client, which loses the short cut and nothing else
                    say(f"a client is left to its timeouts: {error!r}")
                    if session is not None:
                        self._end(session)
            for session in [session for session, until in self._leaving.items() if until <= time.monotonic()]:
                self._end(session)

    def _accept(self) -> None:
        try:
            control, _ = self._listener.accept()
        except OSError:
            time.sleep(0.1)  # no descriptor is left
            return
        if user_of(control) != os.geteuid():
            control.close()
            return
        control.setblocking(False)
        self._watch(Session(control), control.fileno())

    def _watch(self, session: Session, fd: int) -> None:
        self._poll.register(fd, select.EPOLLIN)
        self._sessions[fd] = session

    def _unwatch(self, fd: int) -> None:
        if self._sessions.pop(fd, None) is not None:
            self._poll.unregister(fd)
            self._left.add(fd)

    def _ready(self, session: Session, fd: int) -> None:
        if session.control is not None and fd == session.control.fileno():
            self._receive(session)
        elif fd in session.proofs:
            self._prove(session, fd)
        else:
            for number, server in list(session.servers.items()):
                if fd == server.sock.fileno():
                    self._lose_server(session, number)

    def _receive(self, session: Session) -> None:
        """Handle the messages that have come, a bounded number: then it is the turn of others."""
        for _ in range(MOST_MESSAGES):
            if (control := session.control) is None:
                return
            try:
                data, fds, _, _ = socket.recv_fds(control, MOST_BYTES, MOST_FDS)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            try:
                if data:
                    self._take(session, json.loads(data), fds)
                else:
                    self._hang_up(session, control)
            finally:
                for fd in fds:  # that were not taken
                    os.close(fd)

    def _hang_up(self, session: Session, control: socket.socket) -> None:
        """End the connection to a client, which says nothing about the process."""
        self._unwatch(control.fileno())
        control.close()
        session.control = None
        if not session.servers:
            self._end(session)  # it can never release anything

    def _take(self, session: Session, message: dict[str, object], fds: list[int]) -> None:
        if message["what"] == "begin":
            session.begin(message, fds)
            for proof in session.proofs:
                self._watch(session, proof)
        elif message["what"] == "server":
            if session.record < 0:
                raise ValueError("a session begins first")
            number = int(str(message["node"]))
            self._drop_server(session, number)
            if "tls" in message:
                connection = TlsConnection(message["tls"])
                session.servers[number] = Server(connection, message)
                if session.control is not None:
                    self._graves.crew.do(partial(_check, connection, session.control.dup()), 0.0, connection.files)
            else:
                session.servers[number] = _server(message, fds)
                self._watch(session, session.servers[number].sock.fileno())
            former, self._newest[session.key] = self._newest.get(session.key, session), session
            if former is not session:
                self._end(former)  # the client has lost it
        elif message["what"] == "leave":
            self._drop_server(session, int(str(message["node"])))
        elif message["what"] == "end":  # nothing is to be released any more
            self._end(session)
        elif message["what"] == "expire":  # nothing is held any more, and what is in doubt is so for a while
            self._leaving[session] = time.monotonic() + float(str(message["in_s"]))

    def _drop_server(self, session: Session, number: int) -> None:
        if (server := session.servers.pop(number, None)) is not None:
            self._unwatch(server.sock.fileno())
            server.close()

    def _lose_server(self, session: Session, number: int) -> None:
        """Ask the client for another connection: nothing was asked of the server, so it has closed this one."""
        self._drop_server(session, number)
        if (control := session.control) is not None:
            try:
                control.send(json.dumps({"what": "lost", "node": number}).encode())
            except BlockingIOError:  # it does not read: it begins another session when it does
                self._hang_up(session, control)
            except OSError:
                pass  # it has ended: what it has sent before is read in its turn
        elif not session.servers:
            self._end(session)

    def _prove(self, session: Session, fd: int) -> None:
        if not _has_ended(fd):
            return
        self._unwatch(fd)
        if not all(map(_has_ended, session.proofs)):
            return  # the others have not come yet
        if session.control is not None:
            try:
                self._receive(session)  # its last messages
            except Exception as error:  # what it has sent before is enough
                say(f"the last message of a client is left out: {error!r}")
            if session.record < 0:
                return
        self._forget(session)
        session.bury(self._graves)

    def _end(self, session: Session) -> None:
        self._forget(session)
        session.close()

    def _forget(self, session: Session) -> None:
        self._leaving.pop(session, None)
        if self._newest.get(session.key) is session:
            del self._newest[session.key]
        for fd in session.watched:
            self._unwatch(fd)


def main(arguments: list[str]) -> None:
    """Serve on the listening socket with this number; with a second number, a pidfd, as the child of that process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if len(arguments) > 1 else signal.SIG_DFL)
    if len(arguments) > 1 and os.fork():
        os._exit(0)  # the process need not wait for it, and does not meet it in its own waits for children
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it has passwords and tokens of others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener = socket.socket(fileno=int(arguments[0]))
    listener.setblocking(False)
    Keeper(listener, int(arguments[1]) if len(arguments) > 1 else -1).run()


if __name__ == "__main__":
    main(sys.argv[1:])
