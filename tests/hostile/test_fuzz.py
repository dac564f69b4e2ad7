"""Replies at random: nothing that a server says costs more than the connection on which it says so. See ``make fuzz``."""

from __future__ import annotations

import os

import pytest

from tests.hostile.fuzzing import FUZZED, fuzz

COUNT = int(os.environ.get("FUZZ_REPLIES", "1000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("form", FUZZED)
def test_no_reply_costs_more_than_its_connection(form: str) -> None:
    fuzz(form, COUNT, SEED)
