"""A finding, the result of one check in plain words; what a refused command means, and what to do about it."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

import redis

from wheel_lock.cli import server
from wheel_lock.protocol.server_errors import REMEDIES, remedy_for

_COMMANDS = re.compile(r"permissions to run the '([^']+)'|may not call ([A-Z]+(?:, [A-Z]+)*)")


class Severity(enum.StrEnum):
    """How much a finding endangers locks."""

    OK = "ok"
    UNKNOWN = "unknown"  # the server does not report it, or the user may not read it
    WARNING = "warning"  # locks can be lost, or granted twice, when something else fails
    PROBLEM = "problem"  # locks do not work, or can be lost at any moment


Result = tuple[Severity, str, str]
"""Severity, text and advice of a finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str  # a short name of what was checked
    severity: Severity
    text: str  # what was found, as one sentence
    advice: str = ""  # what to do about it; empty if there is nothing to do
    server: str = ""  # the address of the server that it is about; empty if it is about all


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the greatest severity among ``findings``; OK if there are none."""
    order = list(Severity)
    return max((finding.severity for finding in findings), key=order.index, default=Severity.OK)


def user_of(client: redis.Redis) -> str:
    """Return the name of a client's user, for ACL SETUSER lines."""
    name: str | None = client.connection_pool.connection_kwargs.get("username")
    return name or "default"


def is_silence(error: BaseException) -> bool:
    """Return whether a command has no reply at all, of a server that is gone or hangs."""
    refused = (redis.AuthenticationError, redis.exceptions.BusyLoadingError)
    return isinstance(error, (redis.ConnectionError, redis.TimeoutError, OSError)) and not isinstance(error, refused)


def unknown(command: str, error: BaseException, user: str) -> Result:
    """Return the result of a check for which ``user`` gets no reply to ``command``."""
    return Severity.UNKNOWN, f"{command} fails: {server.one_line(error)}", advice(error, user)


def advice(error: BaseException, user: str) -> str:
    """Return what to do about a refusal: the ACL SETUSER line for the commands that it names, or the remedy of its code."""
    commands = commands_in(error)
    return f"ACL SETUSER {user} {' '.join(f'+{name}' for name in commands)}" if commands else remedy_for(error) or ""


def commands_in(error: BaseException) -> list[str]:
    """Return the commands that the error says the user has no right to."""
    found = _COMMANDS.search(str(error))
    return (found[1] or found[2]).lower().split(", ") if found else []


def without_remedy(text: str) -> tuple[str, str]:
    """Return the server's own words in the text of an error of the library, and the remedy behind them, if any.

    >>> without_remedy("OOM command not allowed: the server is full: free memory, or raise its maxmemory")
    ('OOM command not allowed', 'the server is full: free memory, or raise its maxmemory')
    """
    for remedy in REMEDIES.values():
        if f": {remedy}" in text:
            return text.replace(f": {remedy}", ""), remedy
    return text, ""
