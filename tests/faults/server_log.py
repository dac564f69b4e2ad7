"""What MONITOR says about plain locks, whose value is the token: who held which name, and what was done for which token.

The names must never expire while they are watched: then what the server stores follows from the commands alone. Rules,
beside those of checker.py:

S4  a call changes only keys that hold a token which the call names
S6  no call names a token after the release of that token has returned
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from tests.faults.checker import Tenure, Violation

_READS = {b"get", b"mget", b"pttl", b"ttl", b"exists", b"type", b"strlen"}
_SLACK_S = 0.001  # the clocks of the server and of its clients are one, but are not read at the same moment


class Called(NamedTuple):
    """A command of a client, or of a script, as MONITOR tells it, on CLOCK_MONOTONIC."""

    at: float
    of_script: bool
    words: tuple[bytes, ...]

    @property
    def verb(self) -> bytes:
        return self.words[0].lower()


class Released(NamedTuple):
    """A release of a token had returned by then."""

    token: str
    at: float


class ServerLog:
    """Follows a server's commands from an empty database on, as far as they are about `names`."""

    def __init__(self, names: Collection[str], calls: Iterable[Called]) -> None:
        self._names = {name.encode() for name in names}
        self._owners: dict[bytes, tuple[bytes, float]] = {}  # by name: the token, and since when
        self._named: dict[bytes, float] = {}  # by word: when a client's call named it last
        self.tenures: list[Tenure] = []
        self.violations: list[Violation] = []
        self.changes = 0
        client: Called | None = None
        for call in calls:
            if not call.of_script:
                client = call
                for word in call.words[1:]:
                    self._named[word] = call.at
            if client is not None and call.words:
                self._follow(call, client)
        for name, (token, since) in self._owners.items():
            self.tenures.append(Tenure(name.decode(), token.decode(), since, float("inf")))
        self.left = sorted(name.decode() for name in self._owners)

    def named_after(self, releases: Iterable[Released]) -> Iterator[Violation]:
        """S6, for releases that have returned."""
        for released in releases:
            last = self._named.get(released.token.encode())
            if last is not None and last > released.at + _SLACK_S:
                yield Violation("S6", f"{released} and a call that names it {last - released.at:.4f} s later")

    def _follow(self, call: Called, client: Called) -> None:
        """Take one command: a change of a key, a read, or one that is about other keys."""
        words, verb = call.words, call.verb
        if verb in _READS or verb.startswith(b"eval") or not any(word in self._names for word in words[1:]):
            return
        if verb == b"set" and b"NX" in {word.upper() for word in words[3:]}:
            if words[1] not in self._owners:
                self._owners[words[1]] = words[2], client.at
                self.changes += 1
            return
        for name in self._names.intersection(words[1:]):
            self._change(name, call, client)

    def _change(self, name: bytes, call: Called, client: Called) -> None:
        owner = self._owners.get(name)
        if owner is None:
            return  # there is nothing to change
        self.changes += 1
        if owner[0] not in client.words:
            self.violations.append(Violation("S4", f"{name!r} belongs to {owner[0]!r}, and was changed by {client}"))
        if call.verb in (b"del", b"unlink", b"delex"):
            del self._owners[name]
            self.tenures.append(Tenure(name.decode(), owner[0].decode(), owner[1], call.at))
