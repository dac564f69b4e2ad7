"""Tokens are 128 bits of the system's generator, new each time, however many are drawn at once."""

from __future__ import annotations

import binascii
import os
import secrets
from itertools import islice

import pytest

from wheel_lock.protocol.tokens import TOKEN_CHARACTERS, new_token, new_tokens

MANY = 5000
BITS = 128


def bits(token: bytes) -> int:
    """The number that a token's text stands for."""
    assert len(token) == TOKEN_CHARACTERS
    return int.from_bytes(binascii.a2b_base64(token + b"=="))


@pytest.mark.parametrize("drawn", [[new_token() for _ in range(MANY)], list(islice(new_tokens(), MANY))])
def test_tokens_differ_in_every_one_of_128_bits(drawn: list[bytes]) -> None:
    assert len(set(drawn)) == MANY
    numbers = [bits(token) for token in drawn]
    for bit in range(BITS):
        ones = sum(number >> bit & 1 for number in numbers)
        # 2,500 expected, with a standard deviation of 35: ten of them are never seen.
        assert abs(ones - MANY / 2) < 10 * (MANY / 4) ** 0.5, f"bit {bit} is 1 in {ones} of {MANY}"


def test_tokens_come_from_the_systems_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def token_bytes(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    monkeypatch.setattr(secrets, "token_bytes", token_bytes)
    new_token()
    assert asked == [BITS // 8]
    list(islice(new_tokens(), MANY))
    assert sum(asked[1:]) >= MANY * BITS // 8
