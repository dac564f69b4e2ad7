"""Tokens: the secret value of a lease's owner. 128 bits from the system's generator, never drawn in advance.

(A stock would be copied by a fork, or by a snapshot of the machine, and two owners would have the same tokens.)
"""

from __future__ import annotations

import binascii
import secrets
from collections.abc import Iterator

_TOKEN_BYTES = 16
_TOKENS_PER_DRAW = 512
TOKEN_CHARACTERS = 22


def new_token() -> bytes:
    """Return a new 128-bit random token of 22 characters."""
    return _as_text(secrets.token_bytes(_TOKEN_BYTES))


def new_tokens() -> Iterator[bytes]:
    """Yield new tokens without end; random bytes are drawn for 512 of them at a time."""
    while True:
        drawn = secrets.token_bytes(_TOKEN_BYTES * _TOKENS_PER_DRAW)
        for start in range(0, len(drawn), _TOKEN_BYTES):
            yield _as_text(drawn[start : start + _TOKEN_BYTES])


def _as_text(random: bytes) -> bytes:
    return binascii.b2a_base64(random)[:TOKEN_CHARACTERS]  # the rest is padding
