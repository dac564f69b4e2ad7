"""Refused commands: what a check says that could not be made, and what to do about it."""

from __future__ import annotations

import re

import redis

from wheel_lock.cli import server
from wheel_lock.cli.doctor.findings import Finding, Severity
from wheel_lock.protocol.server_errors import REMEDIES, remedy_for

_COMMANDS = re.compile(r"permissions to run the '([^']+)'|may not call ([A-Z]+(?:, [A-Z]+)*)")


def is_silence(error: BaseException) -> bool:
    """Return whether a command has no reply at all, of a server that is gone or hangs."""
    refused = (redis.AuthenticationError, redis.exceptions.BusyLoadingError)
    return isinstance(error, (redis.ConnectionError, redis.TimeoutError, OSError)) and not isinstance(error, refused)


def unknown(check: str, command: str, error: BaseException, user: str) -> Finding:
    """Return the finding of a check for which ``user`` gets no reply to ``command``."""
    return Finding(check, Severity.UNKNOWN, f"{command} fails: {server.one_line(error)}", advice(error, user))


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
