"""A finding: the result of one check, in plain words."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import redis


class Severity(enum.StrEnum):
    """How much a finding endangers locks."""

    OK = "ok"
    UNKNOWN = "unknown"  # the server does not report it, or the user may not read it
    WARNING = "warning"  # locks can be lost, or granted twice, when something else fails
    PROBLEM = "problem"  # locks do not work, or can be lost at any moment


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: A short name of what was checked.
        severity: How much it endangers locks.
        text: What was found, as one sentence.
        advice: What to do about it; empty if there is nothing to do.
        server: The address of the server that it is about; empty if it is about all.
    """

    check: str
    severity: Severity
    text: str
    advice: str = ""
    server: str = ""


class Master(NamedTuple):
    """A master that is checked.

    Attributes:
        address: Host and port.
        client: A client of it.
        user: The name of the client's user, for ACL SETUSER lines.
        version: The server's version; None if the connection does not know it.
    """

    address: str
    client: redis.Redis
    user: str
    version: str | None


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the greatest severity among ``findings``; OK if there are none."""
    order = list(Severity)
    return max((finding.severity for finding in findings), key=order.index, default=Severity.OK)
