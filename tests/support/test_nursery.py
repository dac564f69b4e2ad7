"""What comes out of a nursery is a program of its own."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest

from tests.support.nursery import Nursery

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.support.nursling", "an argument", options=("-W", "error")) as nursery:
        yield nursery


def test_a_program_writes_where_it_is_told_and_comes_to_its_end(nursery: Nursery) -> None:
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        child = nursery.start("says", stdout=printed.fileno(), stderr=said.fileno())
        assert child.ends_within(PATIENCE_S)
        assert child.wait() == 0
        child.kill()  # which it needs no more
        for file in (printed, said):
            file.seek(0)
        expected = ["tests.support.nursling", "an argument"]
        assert printed.read() == f"says {child.pid} {expected}\nand has ended\n"
        assert said.read() == "says\n"


def test_a_program_has_an_exit_code_and_descriptors_of_its_own(nursery: Nursery) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as told, open(os.devnull, "w") as nowhere:
        child = nursery.start("fails", fds=[writing], stdout=nowhere.fileno(), stderr=nowhere.fileno())
        os.close(writing)
        assert told.read() == b"fails"  # and the end: nobody else has kept the pipe
        assert child.wait() == 3


def test_programs_run_beside_each_other_until_they_are_killed(nursery: Nursery) -> None:
    with open(os.devnull, "w") as nowhere:
        children = [nursery.start("waits", stdout=nowhere.fileno(), stderr=nowhere.fileno()) for _ in range(2)]
        assert not children[0].ends_within(0.0)
        for child in children:
            child.kill()
            assert child.wait() == -signal.SIGKILL
