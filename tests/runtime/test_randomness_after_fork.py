"""Chance after a fork: no two children, and not the parent either, draw what another has drawn."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.support.background import in_a_fork
from wheel_lock.runtime import tokens
from wheel_lock.runtime.backoff import JITTER, Backoff
from wheel_lock.runtime.tokens import new_token, new_tokens

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
