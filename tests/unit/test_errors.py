"""Errors: code that catches redis-py's goes on catching ours, and no message can carry harm or a secret."""

from __future__ import annotations

import copy
import pickle

import pytest
import redis.exceptions as theirs
from hypothesis import given, settings
from hypothesis import strategies as st

import wheel_lock
from wheel_lock import errors
from wheel_lock.errors import (
    ContextClosed,
    LockAlreadyHeld,
    LockLost,
    LockNotAcquired,
    LockNotHeld,
    LockServerError,
    LocksLost,
    LockTimeout,
    LockUnavailable,
    LossReason,
    TimerStopped,
    TooManyLocks,
    TooManyTimeouts,
    WheelLockError,
    WrongThread,
    quoted,
)

PLAIN: list[type[WheelLockError]] = [
    ContextClosed,
    LockAlreadyHeld,
    LockNotAcquired,
    LockNotHeld,
    LockServerError,
    LockTimeout,
    LockUnavailable,
    TooManyLocks,
    WheelLockError,
    WrongThread,
]
ALL: list[WheelLockError] = [
    *(error("The server is on fire", "order:42") for error in PLAIN),
    LockLost("order:42", LossReason.KEY_GONE),
    LocksLost({"order:42": LossReason.KEY_GONE}),
    LocksLost({"order:42": LossReason.KEY_GONE, b"order:43": LossReason.TAKEN}),
]
NASTY = ["two\nlines\r\n", "\0", "\x1b[31mred", "\u202eright to left", "\ud800", "ünïcode", "x" * 1_000_000]


def names_of(error: object) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", ALL, ids=names_of)
def test_whoever_catches_the_lock_errors_of_redis_py_catches_ours(error: WheelLockError) -> None:
    assert isinstance(error, theirs.LockError)
    assert isinstance(error, theirs.RedisError)
    assert isinstance(error, ValueError)  # redis-py's LockError is one
    assert isinstance(error, WheelLockError)


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (LockLost, theirs.LockNotOwnedError),
        (LocksLost, LockLost),
        (LockTimeout, theirs.TimeoutError),
        (LockUnavailable, theirs.ConnectionError),
        (LockServerError, theirs.ResponseError),
    ],
)
def test_an_error_is_also_what_redis_py_would_have_raised(error: type[Exception], base: type[Exception]) -> None:
    assert issubclass(error, base)


@pytest.mark.parametrize("error", [TimerStopped, TooManyTimeouts])
def test_errors_of_the_timer_have_nothing_to_do_with_redis(error: type[Exception]) -> None:
    assert issubclass(error, RuntimeError)
    assert not issubclass(error, theirs.RedisError)


def test_every_error_is_offered_by_the_package() -> None:
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__:
            assert getattr(wheel_lock, name) is value
            assert name in wheel_lock.__all__


@pytest.mark.parametrize("error", ALL, ids=names_of)
def test_each_carries_the_name_of_the_lock_and_a_message(error: WheelLockError) -> None:
    assert error.lock_name == "order:42"
    assert str(error) == error.message
    assert error.args == (str(error),)
    assert "on fire" in str(error) or "order:42" in str(error)


@pytest.mark.parametrize("error", ALL, ids=names_of)
def test_each_survives_the_way_to_another_process(error: WheelLockError) -> None:
    # Job queues and process pools pickle what a task raises; one that fails at that hides the error, or hangs.
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.lock_name == error.lock_name
        assert getattr(again, "reason", None) is getattr(error, "reason", None)
        assert getattr(again, "losses", None) == getattr(error, "losses", None)


@pytest.mark.parametrize("reason", LossReason)
def test_a_loss_says_which_lock_and_why(reason: LossReason) -> None:
    error = LockLost(b"order:42", reason)
    assert error.reason is reason
    assert str(error) == f"The lock 'order:42' was lost: {reason.value}"
    assert reason.value in f"{reason}"
    assert reason.value


def test_the_reasons_are_as_the_design_names_them() -> None:
    assert {reason.value for reason in LossReason} >= {
        "not confirmed in time",
        "key gone",
        "taken by another",
        "renewal limit reached",
        "hold limit reached",
        "abandoned",
        "context closed",
    }


def test_many_losses_say_how_many_and_keep_each_reason() -> None:
    losses: dict[str | bytes, LossReason] = {f"job:{number}": LossReason.TAKEN for number in range(10_000)}
    error = LocksLost(losses)
    assert error.losses == losses
    assert error.reason is LossReason.TAKEN
    assert str(error) == "10000 locks were lost, among them 'job:0': taken by another"


def test_a_single_loss_among_many_releases_reads_as_one() -> None:
    assert str(LocksLost({"a": LossReason.KEY_GONE})) == "The lock 'a' was lost: key gone"


@pytest.mark.parametrize("name", [*NASTY, *(name.encode("utf-8", "surrogatepass") for name in NASTY), b"\xff\xfe"])
def test_a_name_in_a_message_is_escaped_and_bounded(name: str | bytes) -> None:
    for error in (
        LockLost(name, LossReason.TAKEN),
        LocksLost({name: LossReason.TAKEN}),
        LocksLost({name: LossReason.TAKEN, "b": LossReason.TAKEN}),
    ):
        assert str(error).isascii()
        assert str(error).isprintable()
        assert len(str(error)) < 300
        assert error.lock_name == name


@given(name=st.text() | st.binary(max_size=600))
@settings(deadline=None)
def test_any_name_is_quoted_in_printable_ascii(name: str | bytes) -> None:
    shown = quoted(name)
    assert shown.isascii()
    assert shown.isprintable()
    assert shown[0] == shown[-1]
    assert shown[0] in "'\""
    assert len(shown) <= 85 * 10  # a character outside the basic plane is escaped to ten


def test_a_long_name_is_cut_where_it_says_so() -> None:
    assert quoted("x" * 80) == repr("x" * 80)
    assert quoted("x" * 81) == repr("x" * 80 + "...")


def test_text_and_its_bytes_are_quoted_alike() -> None:
    assert quoted("ü:42") == quoted("ü:42".encode()) == r"'\xfc:42'"


def test_no_name_says_so() -> None:
    assert quoted(None) == "(no name)"
    assert "(no name)" in str(LockLost(None, LossReason.TAKEN))
