"""Tokens are 128 bits of the system's generator, new each time, however many are drawn at once."""

from __future__ import annotations

import binascii
import os
import secrets
from collections.abc import Callable
from itertools import islice

import pytest

from tests.support.background import Background, in_a_fork
from wheel_lock.runtime import tokens
from wheel_lock.runtime.backoff import JITTER, Backoff
from wheel_lock.runtime.tokens import TOKEN_CHARACTERS, new_token, new_tokens

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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes the system's generator has been asked for, each time, from a stock without tokens on."""
    asked: list[int] = []

    def token_bytes(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    monkeypatch.setattr(secrets, "token_bytes", token_bytes)
    monkeypatch.setattr(tokens, "_drawn", [])
    return asked


def test_tokens_come_from_the_systems_generator(asked: list[int]) -> None:
    for _ in range(MANY):
        new_token()
    assert sum(asked) >= MANY * BITS // 8
    assert len(asked) <= MANY / 500  # in blocks
    asked.clear()
    list(islice(new_tokens(), MANY))
    assert sum(asked) >= MANY * BITS // 8


def test_threads_take_different_numbers_of_a_block(monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> None:
    monkeypatch.setattr(tokens, "time_ns", lambda: 0)
    callers = [Background(lambda: [new_token() for _ in range(MANY)]) for _ in range(4)]
    assert len({token for caller in callers for token in caller.result()}) == 4 * MANY


def test_two_copies_of_a_machine_take_different_tokens(monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> None:
    new_token()
    copied = tokens._drawn.copy()
    taken = {new_token() for _ in range(100)}
    monkeypatch.setattr(tokens, "_drawn", copied)
    assert taken.isdisjoint(new_token() for _ in range(100))


DRAWS: list[Callable[[], object]] = [
    lambda: [JITTER.uniform(0.5, 1.5) for _ in range(3)],
    lambda: Backoff(0.02, 0.5).pause(),
    new_token,
    lambda: next(new_tokens()),
]


def test_forked_children_draw_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "time_ns", lambda: 0)  # a part of each token, which would tell equal draws apart

    def draw() -> list[object]:
        return [each() for each in DRAWS]

    draw()  # whatever is made at first use is there
    reader, writer = os.pipe()
    for _ in range(2):
        in_a_fork(lambda: os.write(writer, f"{draw()!r}\n".encode()))
    os.close(writer)
    with open(reader) as output:
        drawn = [eval(line) for line in output]
    for draws in zip(*drawn, draw(), strict=True):
        assert len({str(each) for each in draws}) == 3
