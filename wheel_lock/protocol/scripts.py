"""The Lua scripts: text, SHA-1, and the encoded head of a call.

A script has a form for each capability of servers. On Redis 7 and newer its text starts with a ``#!lua flags=...``
line, which lets one call use keys of all slots of a cluster node, lets renewals run when the server is out of memory,
and makes a demoted master answer READONLY. Older servers and fakeredis do not support that line, and get the text
without it, and without the lines that use ``PEXPIRE ... GT``, which is new in Redis 7, too; the lines behind them do
the same work. A connection chooses the form once, when it is made.

Scripts call ``redis.pcall``, so that one bad key fails alone. No script shortens an expiry, however late it arrives,
because a proxy delivers what it has accepted although the connection is gone; ``extend(replace_ttl=True)`` and
redis-py's ``reacquire()`` are the exceptions. No script leaves a key without an expiry; see include/expiry.lua.

A renewal is a GET and a PEXPIRE for each lease. MGET would save the server 4 to 14 % of a call. It takes one right
more; one refused key would refuse all; WRONGTYPE reads like a missing key; and a cluster refuses it for several slots.
(``SET ... IFEQ`` saves nothing.)
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
"""The commands that scripts require. PUBLISH, TYPE, HLEN and HKEYS are optional: the user may have no right to them.
STRLEN, HSTRLEN, HGET and PUBSUB are optional, too: they only add to what LOOK returns."""


class ScriptForm:
    """One text of a script, and its calls.

    Attributes:
        source: The text.
        sha1: Its SHA-1 in hexadecimal, the argument of EVALSHA.
    """

    __slots__ = ("_by_sha1", "_by_source", "_heads", "sha1", "source")

    def __init__(self, source: bytes) -> None:
        self.source: bytes = source
        self.sha1: str = hashlib.sha1(source, usedforsecurity=False).hexdigest()
        self._by_sha1 = b"$7\r\nEVALSHA\r\n" + bulk_string(self.sha1.encode())
        self._heads: dict[
            tuple[int, int], bytes
        ] = {}  # of calls with declared keys, whose numbers of arguments are few
        self._by_source = b"$4\r\nEVAL\r\n" + bulk_string(source)

    def call(self, keys: int, arguments: int, body: bytes, *, use_eval: bool = False) -> bytes:
        """Encode one call.

        Args:
            keys: The number of arguments that are KEYS; they come first.
            arguments: The number of bulk strings in ``body``, keys included.
            body: The encoded arguments.
            use_eval: Send the text (EVAL, which also loads it into the server's cache) instead of its SHA-1.
        """
        head = None if use_eval or not keys else self._heads.get((keys, arguments))
        if head is None:
            command = self._by_source if use_eval else self._by_sha1
            head = b"*%d\r\n%b$%d\r\n%d\r\n" % (arguments + 3, command, len(str(keys)), keys)
            if keys and not use_eval:
                self._heads[keys, arguments] = head
        return head + body


class DeclaredKeysForm(NamedTuple):
    """The form of a batched script for one lease whose keys are declared.

    Attributes:
        script: The same text, with its keys in KEYS.
        keys: The 0-based positions of the keys among the arguments of a call without declared keys.
        arguments: The number of those arguments.
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
    single: DeclaredKeysForm | None = None  # only of batched scripts
    commands: frozenset[str] = frozenset()  # the required commands that it calls

    def form(self, capability: int) -> ScriptForm:
        """Return the form for a server without ``#!lua`` lines (0), with them (1), and with sharded pub/sub, too (2)."""
        return (self.plain, self.flagged, self.sharded)[capability]


class Command:
    """A command before a connection is chosen: a plain one, or a script call whose form the connection determines.

    Attributes:
        script: The script; None for a plain command.
        keys: The number of arguments that are KEYS.
        arguments: The number of bulk strings in ``body``, keys included.
        body: The encoded arguments; for a plain command, the whole command.
    """

    __slots__ = ("arguments", "body", "keys", "script")

    def __init__(self, script: Script | None, keys: int, arguments: int, body: bytes) -> None:
        self.script: Script | None = script
        self.keys: int = keys
        self.arguments: int = arguments
        self.body: bytes = body

    def declared(self) -> Command:
        """Return the call with declared keys if it is a batched one about one lease, else the call itself."""
        single = None if self.script is None else self.script.single
        if single is None or self.arguments != single.arguments:
            return self
        arguments = split_bulk_strings(self.body)
        keys = [arguments[position] for position in single.keys]
        others = [argument for position, argument in enumerate(arguments) if position not in single.keys]
        return Command(single.script, len(keys), self.arguments, b"".join(map(bulk_string, keys + others)))

    def encode(self, capability: int, use_eval: bool) -> bytes:
        """Return the encoded command for a server's ``capability``; see :meth:`Script.form`, :meth:`ScriptForm.call`."""
        if self.script is None:
            return self.body
        return self.script.form(capability).call(self.keys, self.arguments, self.body, use_eval=use_eval)


_INCLUDE = re.compile(rb"^-- include: (\w+)$", re.MULTILINE)
_ONE_LEASE = re.compile(rb"^-- One lease: (.+)$", re.MULTILINE)
_SINCE_7 = re.compile(rb"^.*'GT'.*\n", re.MULTILINE)
_WORD = re.compile(rb"'(\w+)'")
_LUA = resources.files(__package__).joinpath("lua")


def _included(found: re.Match[bytes]) -> bytes:
    """Return the text of the included file that replaces an ``include`` line."""
    return _INCLUDE.sub(_included, _LUA.joinpath("include", f"{found[1].decode()}.lua").read_bytes().rstrip())


def _load(name: str) -> Script:
    text = _INCLUDE.sub(_included, _LUA.joinpath(f"{name}.lua").read_bytes())
    first, _, _ = text.partition(b"\n")
    flags = first.decode().removeprefix(_FLAGS).strip().split(",")
    found = _ONE_LEASE.search(text)
    single = None
    if found is not None:
        # ARGV is shadowed by the same arguments in the order of the batched form, whether sent as KEYS or ARGV.
        arguments = found[1].decode().split(", ")
        declared = b"local ARGV = {%b}\n%b" % (found[1], text)
        script = Script(f"{name}, one lease", *_forms(declared, [flag for flag in flags if "cross-slot" not in flag]))
        keys = tuple(position for position, argument in enumerate(arguments) if argument.startswith("KEYS"))
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
WRITE_FENCE = _load("write_fence")
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

LOOK = _load("look")

FORCE_RELEASE = _load("force_release")
RIGHTS = _load("rights")

ALL = tuple(script for script in list(globals().values()) if isinstance(script, Script))


def rights_call(*, keyed: bool) -> Command:
    """Return the call that finds the commands which the user may not call. ``keyed``: calls without keys are refused."""
    key = b"wheel_lock:probe:" + secrets.token_hex(16).encode()  # a key that does not exist
    arguments = [*([key] if keyed else []), key, *map(str.encode, sorted(COMMANDS))]
    return Command(RIGHTS, int(keyed), len(arguments), b"".join(map(bulk_string, arguments)))


FLAG_PROBE = b"#!lua flags=no-writes,allow-oom,allow-stale,allow-cross-slot-keys\nreturn 1"
"""A script that only servers with ``#!lua`` support run: the feature is tested, not the version."""

KEYED_FLAG_PROBE = b"#!lua flags=no-writes,allow-oom\nreturn 1"
"""The same for services that refuse calls without keys."""
