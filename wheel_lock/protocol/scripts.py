"""The Lua scripts as the package ships them: text, SHA-1, and the pre-encoded head of a call.

A script has two forms. On Redis 7 and newer its text starts with a ``#!lua flags=...`` line, which lets one call work
on the keys of every slot a cluster node owns, keeps renewing when the server is out of memory, and makes a demoted
master answer READONLY. Older servers and fakeredis do not know that line and get the same text without it. Which form
a connection uses is decided once, when it is made.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from wheel_lock.protocol.resp import bulk

_FLAGS = "-- flags:"


class ScriptForm:
    """One text of a script, ready to be called.

    Attributes:
        source: The text.
        sha1: Its SHA-1 in hexadecimal, by which the server knows it.
    """

    __slots__ = ("_by_sha1", "_in_full", "sha1", "source")

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.sha1 = hashlib.sha1(source, usedforsecurity=False).hexdigest()
        self._by_sha1 = b"$7\r\nEVALSHA\r\n" + bulk(self.sha1.encode())
        self._in_full = b"$4\r\nEVAL\r\n" + bulk(source)

    def call(self, keys: int, arguments: int, body: bytes, *, in_full: bool = False) -> bytes:
        """Encode one call.

        Args:
            keys: How many of the arguments are KEYS; they come first.
            arguments: How many bulk strings ``body`` holds, keys included.
            body: The encoded arguments.
            in_full: Send the text (EVAL, which also makes the server remember it) instead of its SHA-1.
        """
        head = self._in_full if in_full else self._by_sha1
        return b"*%d\r\n%b$%d\r\n%d\r\n%b" % (arguments + 3, head, len(str(keys)), keys, body)


@dataclass(frozen=True, slots=True)
class Script:
    """A script in both of its forms. Compared by identity: each exists once."""

    name: str
    plain: ScriptForm
    flagged: ScriptForm

    def form(self, flagged: bool) -> ScriptForm:
        """Return the form for a server that does (``flagged``) or does not know ``#!lua`` lines."""
        return self.flagged if flagged else self.plain


class Call:
    """One command, not yet tied to a connection: plain, or a script call whose form the connection decides.

    Attributes:
        script: The script, or None for a plain command.
        keys: How many of the arguments are KEYS.
        arguments: How many bulk strings ``body`` holds, keys included.
        body: The encoded arguments; of a plain command, all of it.
    """

    __slots__ = ("arguments", "body", "keys", "script")

    def __init__(self, script: Script | None, keys: int, arguments: int, body: bytes) -> None:
        self.script = script
        self.keys = keys
        self.arguments = arguments
        self.body = body

    def encode(self, flagged: bool, in_full: bool) -> bytes:
        """Return the bytes to send on a connection whose server does (``flagged``) or does not know ``#!lua``."""
        if self.script is None:
            return self.body
        return self.script.form(flagged).call(self.keys, self.arguments, self.body, in_full=in_full)


def _load(name: str) -> Script:
    text = resources.files(__package__).joinpath("lua", f"{name}.lua").read_bytes()
    first, _, _ = text.partition(b"\n")
    flags = first.decode().removeprefix(_FLAGS).strip()
    shebang = f"#!lua flags={flags}\n" if flags else "#!lua\n"
    return Script(name, ScriptForm(text), ScriptForm(shebang.encode() + text))


RENEW = _load("renew")
ACQUIRE = _load("acquire")
ACQUIRE_MANY = _load("acquire_many")
ACQUIRE_FENCED = _load("acquire_fenced")
ADOPT = _load("adopt")
RELEASE = _load("release")
RELEASE_MANY = _load("release_many")
EXTEND = _load("extend")

ALL = (RENEW, ACQUIRE, ACQUIRE_MANY, ACQUIRE_FENCED, ADOPT, RELEASE, RELEASE_MANY, EXTEND)

FLAG_PROBE = b"#!lua flags=no-writes,allow-oom,allow-stale,allow-cross-slot-keys\nreturn 1"
"""A script that only a server with ``#!lua`` support runs: a feature is asked for, not read off a version."""
