"""Error replies: the one place that parses a server's error texts.

An error reply begins with a code in capitals. Before Redis 7 the error of a script wraps an error inside it, and some
conditions have no code inside scripts in any version. ``code`` is the original code in all of these cases. The texts of all
known servers are in tests/protocol/error_texts.tsv. What is shown of them has passed through ``error_text``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

NOT_LOCAL = "NOTLOCAL"
"""The code for a script's key that is on another node of the cluster, or on none; servers have no code for this."""

NOT_NOW = frozenset({"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "TRYAGAIN"})
"""Codes of a server that can serve no requests for the moment."""

REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "ASK": "this is a node of a cluster: use redis.RedisCluster, or a URL redis+cluster://",
        "BUSY": "a script of another client runs for long: wait for it, or end it with SCRIPT KILL",
        "CLUSTERDOWN": "the cluster has slots without a master: see redis-cli --cluster check",
        "CROSSSLOT": "the keys are on several nodes of a cluster: use redis.RedisCluster, or a URL redis+cluster://",
        "LOADING": "the server has just started and loads its data: try again when it is ready",
        "MASTERDOWN": "this is a replica without its master: connect to the master",
        "MAXCLIENTS": "close connections to the server, or raise its maxclients",
        "MISCONF": "the server cannot write its snapshots: free its disk, and see its log",
        "MOVED": "this is a node of a cluster: use redis.RedisCluster, or a URL redis+cluster://",
        "NOAUTH": "give the client the password",
        "NOPERM": "wheel-lock doctor prints the rights that are missing",
        "NOREPLICAS": "the master has lost replicas: see INFO replication and min-replicas-to-write",
        "OOM": "the server is full: free memory, or raise its maxmemory",
        "READONLY": "this is a replica: connect to the master, by Sentinel, as a cluster, or by its address",
        "WRONGPASS": "check the user and the password of the client",
    }
)
"""What to do about an error of the server, by its code. ``MAXCLIENTS`` stands for a text without a code."""

_MOST_READ = 1000  # limit of an error's text that is parsed
_WRAPPED = re.compile(r"ERR Error running script \([^)]*\): ")
_LOCATION = re.compile(r"@?user_script: ?\d+: ")
_CODE = re.compile(r"[A-Z][A-Z0-9_]+(?= |$)")
_KNOWN = {
    *("ASK", "BUSY", "CLUSTERDOWN", "CROSSSLOT", "EXECABORT", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH"),
    *("NOPERM", "NOREPLICAS", "NOSCRIPT", "NOTBUSY", "OOM", "READONLY", "TRYAGAIN", "UNKILLABLE", "WRONGPASS"),
    "WRONGTYPE",
}
_WITHOUT_CODE = {  # texts of errors inside scripts, from Redis 6.2 to 8.2 and Valkey 9
    "The user executing the script can't ": "NOPERM",
    "ACL failure in script": "NOPERM",
    "non local key": NOT_LOCAL,
    "slot not served": NOT_LOCAL,
    "while the cluster is down": "CLUSTERDOWN",
    "do not hash to the same slot": "CROSSSLOT",
}
_WHILE_CONNECTING = {  # texts that have no code, or lose it in redis-py's exceptions
    "max number of clients": "MAXCLIENTS",
    "Redis is loading": "LOADING",
    "invalid username": "WRONGPASS",
    "Authentication required": "NOAUTH",
    "without any password configured": "WRONGPASS",
    "read only replica": "READONLY",
    "Hash slot not served": "CLUSTERDOWN",
    "The cluster is down": "CLUSTERDOWN",
    "Link with MASTER is down": "MASTERDOWN",
}
_FORBIDDEN = re.compile(r"no permissions to run the '([\w|-]+)' command")
_REDIRECTION = re.compile(r"[^ ]* ([0-9]{1,5}) ([!-~]{0,260}):([0-9]{1,5})")  # an IPv6 address has colons of its own
_WANTS_KEYS = re.compile(
    "|".join(
        (
            r"all the keys that the script uses should be passed using the KEYS",  # Alibaba Cloud (Tair), its proxy
            r"eval/evalsha number of keys can't be negative or zero",  # the same
            r"eval/evalsha command keys must be in same slot",  # the same
            r"^(?:ERR )?invalid request$",  # Envoy
            r"wrong number of arguments for (?:command\b|'(?:eval|evalsha)')",  # Envoy, and proxies that read the first key
            r"script tried accessing undeclared key",  # Dragonfly
        )
    ),
    re.IGNORECASE,
)


class ServerError(Exception):
    """An error reply, or an error that a batched script reports about one of its leases."""

    @cached_property
    def code(self) -> str:
        """The code, such as ``READONLY``, also if a script's error wraps it; ``ERR`` if there is none.

        >>> ServerError("ERR Error running script (call to f_00): @user_script:7: -READONLY You can't write").code
        'READONLY'
        """
        text = str(self)[:_MOST_READ]
        if (wrapped := _WRAPPED.match(text)) is not None:
            text = text[wrapped.end() :]
        while (location := _LOCATION.match(text)) is not None:
            text = text[location.end() :]
        text = text.removeprefix("-")
        found = _CODE.match(text)
        if found is not None and found[0] != "ERR":
            return found[0]
        within = _CODE.match(text.removeprefix("ERR "))  # the form of fakeredis
        if within is not None and within[0] in _KNOWN:
            return within[0]
        return next((code for phrase, code in _WITHOUT_CODE.items() if phrase in text), "ERR")

    @property
    def in_script(self) -> bool:
        """True if the error arose inside a script, which may have been executed up to there."""
        text = str(self)
        return not text.startswith(self.code) or "user_script:" in text

    @property
    def redirection(self) -> tuple[int, str, str] | None:
        """The slot, host and port of a MOVED or ASK error; None if they are malformed."""
        read = _REDIRECTION.fullmatch(str(self))
        return None if read is None else (int(read[1]), read[2].removeprefix("[").removesuffix("]"), read[3])

    @property
    def forbidden(self) -> frozenset[str]:
        """The command that the user has no right to call, if the error names one."""
        return frozenset(_FORBIDDEN.findall(str(self)))

    @property
    def wants_keys(self) -> bool:
        """True if the error, to a script call without keys, says that keys must be declared.

        The only code for that is CROSSSLOT, so the text is compared with the known texts of services. Other errors are
        raised, and users can set ``declare_keys``.
        """
        if self.code == "ERR":
            return _WANTS_KEYS.search(str(self)[:500]) is not None
        return self.code == "CROSSSLOT"


def code_of(outcome: object) -> str:
    """Return the code of a ServerError or of an exception of redis-py; an empty text for any other object."""
    if isinstance(outcome, ServerError):
        return outcome.code
    return ServerError(str(outcome)).code if isinstance(outcome, Exception) else ""


def remedy_for(error: BaseException) -> str | None:
    """Return what to do about an error of the server, also as an exception of redis-py; None if that is not known.

    >>> remedy_for(ServerError("OOM command not allowed when used memory > 'maxmemory'."))
    'the server is full: free memory, or raise its maxmemory'
    """
    remedy = REMEDIES.get(code_of(error))
    if remedy is None:
        text = str(error)[:_MOST_READ]
        remedy = next((REMEDIES[code] for phrase, code in _WHILE_CONNECTING.items() if phrase in text), None)
    return remedy
