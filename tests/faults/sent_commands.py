"""What a proxy's byte log says: which commands were sent, when, on which connection, about which token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import hiredis

from tests.support.proxy import TcpProxy
from wheel_lock.protocol import scripts

_BY_SHA1 = {form.sha1.encode(): script.name for script in scripts.ALL for form in (script.plain, script.flagged)}
_BY_SOURCE = {form.source: script.name for script in scripts.ALL for form in (script.plain, script.flagged)}


@dataclass(frozen=True)
class Command:
    """One command as it reached the proxy, at `time` on CLOCK_MONOTONIC.

    `what` is the name of a script of the library for EVAL and EVALSHA, else the command's own in lower case.
    """

    time: float
    connection: int
    what: str
    words: tuple[bytes, ...]

    def mentions(self, word: bytes | str) -> bool:
        return (word.encode() if isinstance(word, str) else word) in self.words


def commands(proxy: TcpProxy, *, since: float = 0.0, mentioning: bytes | str | None = None) -> list[Command]:
    """The commands whose last byte came at `since` or later, in the order in which they came."""
    readers: dict[int, hiredis.Reader] = {}
    found: list[Command] = []
    for entry in list(proxy.log):
        if entry.direction == "to_server":
            reader = readers.setdefault(entry.connection, hiredis.Reader(notEnoughData=None))
            reader.feed(entry.data)
            while (words := reader.gets()) is not None:
                found.append(Command(entry.time, entry.connection, _what(words), tuple(words)))
    return [
        command for command in found if command.time >= since and (mentioning is None or command.mentions(mentioning))
    ]


def of_kind(what: str, among: Iterable[Command]) -> list[Command]:
    return [command for command in among if command.what == what]


def _what(words: list[bytes]) -> str:
    verb = words[0].decode().lower()
    if verb == "evalsha":
        return _BY_SHA1.get(words[1], verb)
    if verb == "eval":
        return _BY_SOURCE.get(words[1], verb)
    return verb
