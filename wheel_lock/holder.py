"""The public description of one holder of a lock, as a server reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["exclusive", "read", "write", "permit"]


@dataclass(frozen=True, slots=True)
class Holder:
    """One holder of a lock at the moment at which the server was asked.

    Attributes:
        owner: The readable owner at the head of the token; None if the token has none. Any client that may write
            the key can choose this text.
        token_id: Eight hexadecimal digits that identify the token without revealing it, see
            :func:`wheel_lock.protocol.owners.token_id`.
        remaining_s: The time in seconds after which the lock expires unless it is renewed; None if it does not expire.
        count: The hold count at the server. (wheel_lock counts in the process, so of its own locks it is 1; Redisson's
            locks have larger ones.)
        mode: ``exclusive``, ``read``, ``write`` or ``permit``.
    """

    owner: str | None
    token_id: str
    remaining_s: float | None
    count: int = 1
    mode: Mode = "exclusive"
