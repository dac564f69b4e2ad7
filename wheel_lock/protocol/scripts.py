"""The Lua scripts as the package ships them: text, SHA-1, and the pre-encoded head of a call.

A script has two forms. On Redis 7 and newer its text starts with a ``#!lua flags=...`` line, which lets one call work
on the keys of every slot a cluster node owns, keeps renewing when the server is out of memory, and makes a demoted
master answer READONLY. Older servers and fakeredis do not know that line and get the same text without it, and without
the lines that use ``PEXPIRE ... GT``, which came with Redis 7, too: what follows such a line does without. Which form a
connection uses is decided once, when it is made.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

from wheel_lock.protocol.resp import bulk_string, split_bulk_strings

_FLAGS = "-- flags:"
COMMANDS = frozenset({
    *("del", "exists", "get", "hexists", "hset", "pexpire", "pttl", "set", "time"),
    *("zadd", "zcard", "zcount", "zrange", "zrangebyscore", "zrem", "zremrangebyscore", "zscore"),
})  # fmt: skip
"""All commands that scripts cannot do without; not so PUBLISH, TYPE, HLEN and HKEYS, where the user may not call them."""


class ScriptForm:
    """One text of a script, ready to be called.

    Attributes:
        source: The text.
        sha1: Its SHA-1 in hexadecimal, by which the server knows it.
    """

    __slots__ = ("_by_sha1", "_by_source", "sha1", "source")

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.sha1 = hashlib.sha1(source, usedforsecurity=False).hexdigest()
        self._by_sha1 = b"$7\r\nEVALSHA\r\n" + bulk_string(self.sha1.encode())
        self._by_source = b"$4\r\nEVAL\r\n" + bulk_string(source)

    def call(self, keys: int, arguments: int, body: bytes, *, use_eval: bool = False) -> bytes:
        """Encode one call.

        Args:
            keys: How many of the arguments are KEYS; they come first.
            arguments: How many bulk strings ``body`` holds, keys included.
            body: The encoded arguments.
            in_full: Send the text (EVAL, which also makes the server remember it) instead of its SHA-1.
        """
        head = self._by_source if use_eval else self._by_sha1
        return b"*%d\r\n%b$%d\r\n%d\r\n%b" % (arguments + 3, head, len(str(keys)), keys, body)


class DeclaredKeysForm(NamedTuple):
    """A batched script as it is called about one lease whose keys are declared.

    Attributes:
        script: The same text, which finds its keys among KEYS.
        keys: Where they are among the arguments of a call that declares none, counted from 0.
        arguments: How many of those there are.
    """

    script: Script
    keys: tuple[int, ...]
    arguments: int


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """A script in all of its forms. Compared by identity: each exists once."""

    name: str
    plain: ScriptForm
    flagged: ScriptForm
    sharded: ScriptForm
    single: DeclaredKeysForm | None = None  # of a batched script
    commands: frozenset[str] = frozenset()  # without which it cannot do its work

    def form(self, capability: int) -> ScriptForm:
        """Return the form for a server that does not know ``#!lua`` lines (0), does (1), and has sharded pub/sub (2)."""
        return (self.plain, self.flagged, self.sharded)[capability]


class Command:
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

    def declared(self) -> Command:
        """Return a call about one lease with its keys declared; of any other call, the call itself."""
        single = None if self.script is None else self.script.single
        if single is None or self.arguments != single.arguments:
            return self
        arguments = split_bulk_strings(self.body)
        keys = [arguments[place] for place in single.keys]
        others = [argument for place, argument in enumerate(arguments) if place not in single.keys]
        return Command(single.script, len(keys), self.arguments, b"".join(map(bulk_string, keys + others)))

    def encode(self, capability: int, use_eval: bool) -> bytes:
        """Return the bytes to send on a connection to a server of a ``level``; see :meth:`Script.form`."""
        if self.script is None:
            return self.body
        return self.script.form(capability).call(self.keys, self.arguments, self.body, use_eval=use_eval)


_INCLUDE = re.compile(rb"^-- include: (\w+)$", re.MULTILINE)
_ONE_LEASE = re.compile(rb"^-- One lease: (.+)$", re.MULTILINE)
_SINCE_7 = re.compile(rb"^.*'GT'.*\n", re.MULTILINE)
_WORD = re.compile(rb"'(\w+)'")
_LUA = resources.files(__package__).joinpath("lua")


def _included(found: re.Match[bytes]) -> bytes:
    """Return what several scripts have in common, in the place of the line that asks for it."""
    return _INCLUDE.sub(_included, _LUA.joinpath("include", f"{found[1].decode()}.lua").read_bytes().rstrip())


def _load(name: str) -> Script:
    text = _INCLUDE.sub(_included, _LUA.joinpath(f"{name}.lua").read_bytes())
    first, _, _ = text.partition(b"\n")
    flags = first.decode().removeprefix(_FLAGS).strip().split(",")
    found = _ONE_LEASE.search(text)
    single = None
    if found is not None:
        # Shadowed: what the text takes for its arguments are these, in their order, wherever they were sent.
        arguments = found[1].decode().split(", ")
        declared = b"local ARGV = {%b}\n%b" % (found[1], text)
        script = Script(f"{name}, one lease", *_forms(declared, [flag for flag in flags if "cross-slot" not in flag]))
        keys = tuple(place for place, argument in enumerate(arguments) if argument.startswith("KEYS"))
        single = DeclaredKeysForm(script, keys, len(arguments))
    return Script(name, *_forms(text, flags), single, frozenset(map(bytes.decode, _WORD.findall(text))) & COMMANDS)


def _forms(text: bytes, flags: list[str]) -> tuple[ScriptForm, ScriptForm, ScriptForm]:
    known = ",".join(filter(None, flags))
    shebang = f"#!lua flags={known}\n" if known else "#!lua\n"
    flagged = shebang.encode() + text
    sharded = flagged.replace(b"'publish'", b"'spublish'")
    return ScriptForm(_SINCE_7.sub(b"", text)), ScriptForm(flagged), ScriptForm(sharded)


RENEW = _load("renew")
ACQUIRE = _load("acquire")
ACQUIRE_MANY = _load("acquire_many")
ACQUIRE_FENCED = _load("acquire_fenced")
ADOPT = _load("adopt")
RELEASE = _load("release")
RELEASE_MANY = _load("release_many")
EXTEND = _load("extend")

ACQUIRE_ALL = _load("acquire_all")

ACQUIRE_REENTRANT = _load("acquire_reentrant")
RENEW_REENTRANT = _load("renew_reentrant")
RELEASE_REENTRANT = _load("release_reentrant")
RELEASE_REENTRANT_MANY = _load("release_reentrant_many")
EXTEND_REENTRANT = _load("extend_reentrant")

ACQUIRE_FAIR = _load("acquire_fair")
RELEASE_FAIR = _load("release_fair")

ACQUIRE_READ = _load("acquire_read")
ACQUIRE_WRITE = _load("acquire_write")
ACQUIRE_PERMIT = _load("acquire_permit")
SET_PERMITS = _load("set_permits")
RENEW_HOLDERS = _load("renew_holders")
RELEASE_HOLDERS = _load("release_holders")
EXTEND_HOLDER = _load("extend_holder")
SWAP_HOLDER = _load("swap_holder")
LOOK_HOLDERS = _load("look_holders")

RIGHTS = _load("rights")

ALL = tuple(script for script in list(globals().values()) if isinstance(script, Script))


def rights_arguments(*, keyed: bool) -> tuple[int, list[bytes]]:
    """Return how many keys a call of RIGHTS has, and its arguments.

    Args:
        keyed: Whether calls without keys are refused.
    """
    key = b"wheel_lock:probe:" + secrets.token_hex(16).encode()  # which does not exist
    return int(keyed), [*([key] if keyed else []), key, *map(str.encode, sorted(COMMANDS))]


def rights_call(*, keyed: bool) -> Command:
    """Return the call that looks which commands the user may not call."""
    keys, arguments = rights_arguments(keyed=keyed)
    return Command(RIGHTS, keys, len(arguments), b"".join(map(bulk_string, arguments)))


FLAG_PROBE = b"#!lua flags=no-writes,allow-oom,allow-stale,allow-cross-slot-keys\nreturn 1"
"""A script that only a server with ``#!lua`` support runs: a feature is asked for, not read off a version."""

KEYED_FLAG_PROBE = b"#!lua flags=no-writes,allow-oom\nreturn 1"
"""The same for services that refuse calls without keys."""
