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

    def __str__(self) -> str:
        """Return the holder and its remaining time, for messages.

        >>> str(Holder("billing@host-7", "2bb80d53", 12.34)), str(Holder(None, "2bb80d53", None))
        ('billing@host-7 for another 12.3 s', 'the owner of token 2bb80d53 without a time limit')
        """
        who = f"the owner of token {self.token_id}" if self.owner is None else self.owner
        left = "without a time limit" if self.remaining_s is None else f"for another {self.remaining_s:.1f} s"
        return f"{who} {left}"
