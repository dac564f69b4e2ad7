"""Tokens: the secret value of a lease's owner. 128 bits from the system's generator, drawn in blocks.

A block is copied by a fork, and by a snapshot of the machine that is resumed several times. So a forked child drops it, and
each token is combined with the time at which it is taken: copies of a machine do not take the same token at the same
nanosecond. (Any number that does not depend on the random one leaves all of its 128 bits random.)
"""

from __future__ import annotations

import binascii
import secrets
from collections.abc import Iterator
from time import time_ns

from wheel_lock.forks import in_forked_child

_TOKEN_BYTES = 16
_TOKENS_PER_DRAW = 512
TOKEN_CHARACTERS = 22


def new_token() -> bytes:
    """Return a new 128-bit random token of 22 characters."""
    try:
        random = _drawn.pop()  # atomic, so no two threads get the same
    except IndexError:
        *more, random = _draw()
        _drawn.extend(more)
    secret = (int.from_bytes(random) ^ time_ns()).to_bytes(_TOKEN_BYTES)
    return binascii.b2a_base64(secret)[:TOKEN_CHARACTERS]  # as _as_text(): each acquire passes here


def new_tokens(head: bytes = b"") -> Iterator[bytes]:
    """Yield new tokens without end, each behind ``head``; random bytes are drawn for 512 of them at a time."""
    while True:
        tokens = map(_as_text, _draw())
        yield from map(head.__add__, tokens) if head else tokens


def with_new_secret(token: bytes) -> bytes:
    """Return ``token`` with a new random text in place of its last one, which a number may follow.

    What precedes it stays: the head that names an owner, the letter of a lock type, a waiter's name.
    """
    colon = token.rfind(b":")
    end = len(token) if len(token) - colon > TOKEN_CHARACTERS else colon  # a number has fewer digits
    return token[: end - TOKEN_CHARACTERS] + new_token() + token[end:]


def _draw() -> list[bytes]:
    """Return new random numbers of 128 bits, drawn by one system call."""
    drawn = secrets.token_bytes(_TOKEN_BYTES * _TOKENS_PER_DRAW)
    return [drawn[start : start + _TOKEN_BYTES] for start in range(0, len(drawn), _TOKEN_BYTES)]


def _as_text(random: bytes) -> bytes:
    return binascii.b2a_base64(random)[:TOKEN_CHARACTERS]  # the rest is padding


_drawn: list[bytes] = []  # not taken yet

in_forked_child(_drawn.clear)
