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
from collections import deque
from collections.abc import Hashable
from functools import partial

if __name__ == "__main__":  # what is beside it is found, and the package is not imported
    _package = sys.modules["wheel_lock.keeper"] = types.ModuleType("wheel_lock.keeper")
    _package.__path__ = [os.path.dirname(os.path.abspath(__file__))]

from wheel_lock.keeper.burial import Graves
from wheel_lock.keeper.crew import say
from wheel_lock.keeper.entries import REGIONS, Entry, read_record
from wheel_lock.keeper.replies import Broken, Replies, Reply
from wheel_lock.keeper.store import REFUSED, RELEASED, Asked
from wheel_lock.keeper.tls import TlsConnection

VERSION = 2
MOST_BYTES = 1 << 18  # of a message
MOST_FDS = 8
MOST_MESSAGES = 1000  # of one client at a time
_IN_FLIGHT = 4000  # entries whose calls have no reply
_SILENCE_S = 0.25  # without a byte, after which a server does not answer for now
_EXCHANGE_S = 5.0  # for all replies to so many entries, likewise
_LONG = 200  # characters of an error that is shown
LONGEST_DELAY_S = 1e9  # as the options have it
_SO_PEERPIDFD = 77  # Linux 6.5
_CREDENTIALS = struct.Struct("3i")

_ASKING = b"*1\r\n$6\r\nASKING\r\n"

Call = tuple[int, list[Entry]]
"""A call: the number of its script, and what it releases."""


class Server(Asked):
    """A server, as a client has passed it.

    Attributes:
        sock: The connected socket, or a connection with TLS.
    """

    def __init__(self, sock: socket.socket | TlsConnection, message: dict[str, object]) -> None:
        self.sock = sock
        scripts, names = message["scripts"], message["names"]
        assert isinstance(scripts, list)
        assert isinstance(names, list)
        self._scripts = [
            (script["sha1"], script["source"], script["keys"], script["arguments"], script["channel"].encode())
            for script in scripts
        ]
        self.names: list[str] = list(map(str, names))
        self._most = int(str(message["most"]))
        self._replies = Replies()
        self._why = ""  # that was said
        self._unsent = memoryview(b"")
        self._owed: deque[Call | None] = deque()  # the calls that have no reply, and None for each ASKING

    @property
    def place(self) -> Hashable:
        try:
            return self.sock.getpeername()
        except OSError:
            return None

    def release(self, entries: list[Entry], *, asking: bool = False) -> dict[Entry, str]:
        calls, answers = self.calls(entries), dict[Entry, str]()
        together = max(1, _IN_FLIGHT // max([len(some) for _, some in calls], default=1))
        ahead = _ASKING if asking else b""
        try:
            self._exchange({})  # what it has not answered before: it may have been stopped
            for at in range(0, len(calls), together):
                unknown = self._send(calls[at : at + together], ahead, set(), answers)
                if unknown:
                    self._send(unknown, ahead, {number for number, _ in unknown}, answers)
        except (OSError, ValueError) as error:
            if not isinstance(error, TimeoutError) or error.errno is not None:
                raise Broken(str(error)) from error
        return answers

    def _send(self, calls: list[Call], ahead: bytes, texts: set[int], answers: dict[Entry, str]) -> list[Call]:
        """Send calls, the first ones of the scripts ``texts`` with their texts; return those of unknown scripts."""
        data = []
        for call in calls:
            number, entries = call
            data += [ahead, self._call(number, entries, b"EVAL" if number in texts else b"EVALSHA")]
            self._owed += [None, call] if ahead else [call]
            texts.discard(number)
        self._unsent = memoryview(b"".join(data))
        return self._exchange(answers)

    def _exchange(self, answers: dict[Entry, str]) -> list[Call]:
        """Send what is to be sent, and read the replies that are due; return the calls of unknown scripts.

        Raises:
            TimeoutError: The server does not take, or answer, all of it for now. What is left is done the next time.
        """
        unknown, until = [], time.monotonic() + _EXCHANGE_S
        while self._unsent:
            self._limit(until)
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        while self._owed:
            while (reply := self._replies.next()) is None:
                self._limit(until)
                if not (data := self.sock.recv(1 << 16)):
                    raise Broken("the server closed the connection")
                self._replies.feed(data)
            if (call := self._owed.popleft()) is not None:
                if reply.error.startswith(b"NOSCRIPT"):
                    unknown.append(call)
                else:
                    self._note(call[1], reply, answers)
        return unknown

    def _limit(self, until: float) -> None:
        """Limit the next step on the socket: what a server answers is not waited for if it is silent, or slow at it."""
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.sock.settimeout(min(left_s, _SILENCE_S))

    def _note(self, entries: list[Entry], reply: Reply, answers: dict[Entry, str]) -> None:
        answers.update(dict.fromkeys(entries, self._answer(reply.error)))
        for number, text in zip(reply.elements[::2], reply.elements[1::2], strict=False):  # the script's exceptions
            if isinstance(number, int) and isinstance(text, bytes) and 0 < number <= len(entries):
                answers[entries[number - 1]] = self._answer(text)

    def _answer(self, error: bytes) -> str:
        if not error:
            return RELEASED
        words = error.decode("utf-8", "replace").split()
        if len(words) == 3 and words[0] in ("MOVED", "ASK"):
            host, _, port = words[2].rpartition(":")
            if host in ("", "?") and self.names:  # it does not know its own name, and means the same one
                host = self.names[0].rpartition(":")[0]
            return f"{host}:{port}"
        why, self._why = self._why, " ".join(words)[:_LONG]
        if why != self._why:
            say(f"a server refuses: {self._why}")
        return REFUSED

    def calls(self, entries: list[Entry]) -> list[Call]:
        """Return the calls that release the entries."""
        calls: list[Call] = []
        for number in range(1, len(self._scripts) + 1):
            some = [entry for entry in entries if entry[0] == number]
            most = 1 if self._scripts[number - 1][2] else self._most
            calls += [(number, some[at : at + most]) for at in range(0, len(some), most)]
        return calls

    def _call(self, number: int, entries: list[Entry], verb: bytes) -> bytes:
        sha1, source, keys, arguments, channel = self._scripts[number - 1]
        bodies = [body for _, _, body in entries]
        if channel:
            bodies = [body + _bulk(b"%b{%b}" % (channel, _first(body))) for body in bodies]
        body = b"".join(bodies)
        if keys:
            words = _split(body)
            body = b"".join(
                map(_bulk, [words[at] for at in keys] + [w for at, w in enumerate(words) if at not in keys])
            )
        head = b"*%d\r\n" % (3 + arguments * len(bodies))
        text = sha1 if verb == b"EVALSHA" else source
        return head + _bulk(verb) + _bulk(text.encode()) + _bulk(b"%d" % len(keys)) + body

    def close(self) -> None:
        self.sock.close()


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _first(data: bytes) -> bytes:
    """Return the first of several bulk strings."""
    end = data.index(b"\r\n")
    return data[end + 2 : end + 2 + int(data[1:end])]


def _split(data: bytes) -> list[bytes]:
    found, start = [], 0
    while start < len(data):
        end = data.index(b"\r\n", start)
        stop = end + 2 + int(data[start + 1 : end])
        found.append(data[end + 2 : stop])
        start = stop + 2
    return found


class Session:
    """The session of one client: its proofs, its record, its servers.

    Attributes:
        control: The socket of the client; None when it has ended, which proves nothing.
        proofs: Descriptors that all have to become readable before the client counts as dead.
        record: The memory file; -1 before the first message.
        key: Equal for those of the same memory file.
        servers: The servers, by the numbers that the client has given them.
    """

    def __init__(self, control: socket.socket) -> None:
        self.control: socket.socket | None = control
        self.proofs: list[int] = []
        self.record: int = -1
        self.key: Hashable = None
        self.servers: dict[int, Server] = {}
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

    def drop_server(self, number: int) -> None:
        if (server := self.servers.pop(number, None)) is not None:
            server.close()

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
        for number in list(self.servers):
            self.drop_server(number)
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
        answer = {"what": "refused", "why": str(error)[:_LONG] or repr(error)}
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
    """Serves clients on a listening socket.

    Args:
        listener: The socket.
        parent: A pidfd of the process for which alone it runs; -1 if it runs for a host.
    """

    def __init__(self, listener: socket.socket, parent: int) -> None:
        self._listener = listener
        self._parent = parent
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
            crew = self._graves.crew
            crew.go_on()
            timeout_s = 1.0 if self._leaving or crew.stuck or (self._parent == -2 and self._graves) else None
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
        if number in session.servers:
            self._unwatch(session.servers[number].sock.fileno())
            session.drop_server(number)

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
