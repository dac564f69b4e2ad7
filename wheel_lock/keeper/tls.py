"""The keeper's connections with TLS, of which it has only a description: the keys of a client's own are in that process.

Each is made when the client has died, by the first byte that is sent. One that was ready would save some milliseconds, but
it would cost the server a connection for each client all the time; the handshakes would need threads, beside the loop that
hears of deaths; and it would have to be distinguished from one that has ended when the server sends tickets. What can be
wrong on this side, the files, is found on a thread when the description comes, and the client hears of it.

Like program.py it imports the standard library only, and ``ssl`` only when there is a description.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from binascii import a2b_base64
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from wheel_lock.keeper.crew import say

if TYPE_CHECKING:
    import ssl

_FILES = ("ca_file", "certificate", "key")
_SETTINGS = (
    *("check_host", "verify", "flags", "not_flags", "certificate", "key", "key_password", "ca_file", "ca_path"),
    *("ca_data", "ca_is_der", "least_version", "ciphers"),
)
_MOST_CONTEXTS = 8  # of different settings, about 1 MB each
_MOST_BYTES = 4096  # of a reply to a login
_NO_USERS = b"-err wrong number of arguments for 'auth'"  # a server older than Redis 6, as redis-py knows it
_STEP_S = 2.0  # the longest wait in each step of connecting: a handshake takes longer than a reply


def _context(description: dict[str, Any]) -> ssl.SSLContext:
    """Return what redis-py makes of the same settings, with the files as they are now. Equal settings share it.

    Raises:
        OSError, ValueError: There is no such file, or it is of no use.
    """
    import ssl

    files, paths = [description[name] for name in _FILES if description[name]], ssl.get_default_verify_paths()
    for path in files:
        if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe may take for ever
            raise ValueError(f"no regular file: {path!r}")
        open(path, "rb").close()  # this error names the file
    versions = tuple(map(_version, (*files, description["ca_path"], paths.cafile, paths.capath)))
    return _made(tuple(description[name] for name in _SETTINGS), versions)


def _version(path: str | None) -> tuple[int, int, int] | None:
    """Return what changes when a file or a directory does; None if there is none."""
    try:
        status = os.stat(path or "")
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(_MOST_CONTEXTS)
def _made(settings: tuple[Any, ...], versions: tuple[object, ...]) -> ssl.SSLContext:
    import ssl

    description = dict(zip(_SETTINGS, settings, strict=True))
    context = ssl.create_default_context()
    context.check_hostname = description["check_host"]
    context.verify_mode = ssl.VerifyMode(description["verify"])
    context.verify_flags = ssl.VerifyFlags((context.verify_flags | description["flags"]) & ~description["not_flags"])
    if description["certificate"] or description["key"]:
        password = description["key_password"] or ""  # without any, OpenSSL would ask for it at the terminal
        context.load_cert_chain(description["certificate"], description["key"], password)
    data = description["ca_data"]
    if description["ca_file"] or description["ca_path"] or data:
        data = a2b_base64(data) if description["ca_is_der"] else data
        context.load_verify_locations(description["ca_file"], description["ca_path"], data)
    if description["least_version"] is not None:
        context.minimum_version = ssl.TLSVersion(description["least_version"])
    if description["ciphers"]:
        context.set_ciphers(description["ciphers"])
    return context


class TlsConnection:
    """A connection that is made when something is sent, with the methods of a socket that a server's calls need.

    Raises:
        LookupError, TypeError: It is no description.
    """

    def __init__(self, description: object) -> None:
        assert isinstance(description, dict)
        self._description: dict[str, Any] = description  # see wheel_lock/net/tls.py
        self._timeout_s = _STEP_S
        self._sock: ssl.SSLSocket | None = None
        self._why = ""  # that was said
        self.files: tuple[object, ...] = tuple(
            description[name] for name in _FILES
        )  # None for each that it does without
        hash((*self.files, *self.getpeername()))  # each is a place

    def check(self) -> None:
        """Raise what is wrong with the files and the settings now; have what is made of them ready. It may block."""
        _context(self._description)

    def fileno(self) -> int:
        """Return -1 as long as nothing was sent."""
        return -1 if self._sock is None else self._sock.fileno()

    def getpeername(self) -> tuple[str, int]:
        """Return the host and the port, also as long as nothing was sent."""
        return self._description["host"], self._description["port"]

    def settimeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def send(self, data: memoryview) -> int:
        """Send some of the data; connect first.

        Raises:
            TimeoutError: There is no connection yet, for whatever reason: the next time it may be made.
        """
        if self._sock is None:
            try:
                self._sock = self._connected()
            except (OSError, ValueError) as error:  # ValueError: a file is none for now
                why, self._why = self._why, str(error)
                if why != self._why:
                    say(f"a server cannot be connected to: {error}")
                raise TimeoutError(self._why) from error
        self._sock.settimeout(self._timeout_s)
        return self._sock.send(data)

    def recv(self, size: int) -> bytes:
        assert self._sock is not None
        self._sock.settimeout(self._timeout_s)
        return self._sock.recv(size)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def _connected(self) -> ssl.SSLSocket:
        """Return a connection that is logged in. Nothing is sent before the server's certificate has been verified."""
        host, port, database = (self._description[name] for name in ("host", "port", "database"))
        login = self._description["login"]
        sock = socket.create_connection((host, port), _STEP_S)
        try:
            sock = tls = _context(self._description).wrap_socket(sock, server_hostname=host)
            until = time.monotonic() + _STEP_S
            commands = [("AUTH", *login)] if login else []
            if database:
                commands.append(("SELECT", str(database)))
            for words in commands:
                reply = _ask(tls, until, *words)
                if login and reply.lower().startswith(_NO_USERS):
                    reply = _ask(tls, until, "AUTH", login[-1])
                if reply != b"+OK\r\n":
                    why = reply[:80].decode("utf-8", "backslashreplace").rstrip()
                    raise ConnectionError(f"{words[0]} was refused: {why}")
        except BaseException:
            sock.close()
            raise
        return tls


def _ask(sock: ssl.SSLSocket, until: float, *words: str) -> bytes:
    bulks = [word.encode("latin-1") for word in words]
    sock.sendall(b"*%d\r\n" % len(bulks) + b"".join(b"$%d\r\n%b\r\n" % (len(bulk), bulk) for bulk in bulks))
    reply = b""
    while not reply.endswith(b"\r\n") and len(reply) < _MOST_BYTES:
        sock.settimeout(max(until - time.monotonic(), 0.001))  # of all of it: a server may send byte by byte
        if not (data := sock.recv(_MOST_BYTES)):
            break
        reply += data
    return reply
