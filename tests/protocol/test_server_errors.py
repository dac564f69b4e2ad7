"""The codes of error replies, by the literal texts of real servers in error_texts.tsv."""

from __future__ import annotations

import csv
import pickle
import time
from pathlib import Path

import pytest

from wheel_lock.errors import LockServerError
from wheel_lock.protocol.server_errors import ServerError, code_of

TABLE = Path(__file__).with_name("error_texts.tsv")
ROWS = list(csv.DictReader(TABLE.read_text().splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))


def error_of(row: dict[str, str]) -> ServerError:
    return ServerError(row["text"].encode().decode("unicode_escape"))


@pytest.mark.parametrize("code", sorted({row["code"] for row in ROWS}))
def test_the_code_is_the_real_one_wherever_it_stands(code: str) -> None:
    for row in (row for row in ROWS if row["code"] == code):
        error = error_of(row)
        assert error.code == code_of(error) == code, row
        assert error.in_script == (row["where"] == "in a script"), row
        assert error.wants_keys == (code == "CROSSSLOT"), row


@pytest.mark.parametrize(
    "text",
    [
        "ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array",
        "ERR wrong number of arguments for 'evalsha' command",
        "invalid request",
    ],
)
def test_what_services_say_that_want_keys(text: str) -> None:
    assert ServerError(text).wants_keys


def test_a_text_without_a_code_has_the_general_one_and_what_is_no_error_has_none() -> None:
    for text in ("", "-", "ERR", "no code at all", "ERR MOVEDED 1 2", "@user_script:1: ", "ErR x"):
        assert ServerError(text).code == "ERR"
        assert not ServerError(text).wants_keys
    outcomes: list[object] = [None, 0, 1, "READONLY no error", b"READONLY", [], ["READONLY"]]
    assert {code_of(outcome) for outcome in outcomes} == {""}
    # An exception of another library:
    assert code_of(RuntimeError("BUSY Redis is busy running a script.")) == "BUSY"


def test_an_exception_for_callers_keeps_its_code_on_its_way_to_another_process() -> None:
    error = LockServerError("no", "order", code="READONLY")
    other = pickle.loads(pickle.dumps(error))
    assert (str(other), other.lock_name, other.code) == ("no", "order", "READONLY")
    assert LockServerError("no").code == "ERR"


def test_an_error_without_an_end_is_not_read_to_the_end() -> None:
    began = time.process_time()
    assert ServerError("user_script: 1: " * (1 << 16)).code == "ERR"
    assert time.process_time() - began < 1.0  # all of it would take several seconds
