"""Errors: code that catches redis-py's goes on catching ours, and no message can carry harm or a secret."""

from __future__ import annotations

import copy
import pickle

import pytest
import redis.exceptions as theirs
from hypothesis import given
from hypothesis import strategies as st

import wheel_lock
from wheel_lock import errors
from wheel_lock.errors import (
    LockLost,
    LockNotAcquired,
    LockServerError,
    LocksLost,
    LocksNotAdopted,
    LockTimeout,
    LockUnavailable,
    LossReason,
    StaleFence,
    TimerStopped,
    TooManyTimeouts,
    WheelLockError,
    quoted,
)


class JobTimeout(LockTimeout, TimeoutError):
    """A program's own error, which its handlers of TimeoutError catch, too."""


OURS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, WheelLockError)]
PLAIN: list[type[WheelLockError]] = [WheelLockError, LockNotAcquired, LockServerError]
PLAIN += [each for each in OURS if "__init__" not in vars(each)]
ALL: list[WheelLockError] = [
    *(error("The server is on fire", "order:42") for error in (*PLAIN, JobTimeout)),
    LockLost("order:42", LossReason.KEY_GONE),
    LocksLost({"order:42": LossReason.KEY_GONE}),
    LocksLost({"order:42": LossReason.KEY_GONE, b"order:43": LossReason.TAKEN}),
    StaleFence("order:42", 7),
    StaleFence("order:42", 7, 8),
    LocksNotAdopted({"order:42": LockTimeout("no answer", "order:42")}),
]
NASTY = ["two\nlines\r\n", "\0", "\x1b[31mred", "\u202eright to left", "\ud800", "ünïcode", "x" * 1_000_000]


def names_of(error: object) -> str:
    return type(error).__name__


def test_whoever_catches_the_lock_errors_of_redis_py_catches_ours() -> None:
    for error in ALL:
        for base in (theirs.LockError, theirs.RedisError, ValueError, WheelLockError):  # redis-py's is a ValueError
            assert isinstance(error, base)


def test_an_error_is_also_what_redis_py_would_have_raised() -> None:
    assert issubclass(LockLost, theirs.LockNotOwnedError)
    assert issubclass(LocksLost, LockLost)
    assert issubclass(LockTimeout, theirs.TimeoutError)
    assert issubclass(LockUnavailable, theirs.ConnectionError)
    assert issubclass(LockServerError, theirs.ResponseError)
    for error in (TimerStopped, TooManyTimeouts):  # which have nothing to do with redis
        assert issubclass(error, RuntimeError)
        assert not issubclass(error, theirs.RedisError)


def test_every_error_is_offered_by_the_package() -> None:
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__:
            assert getattr(wheel_lock, name) is value
            assert name in wheel_lock.__all__


@pytest.mark.parametrize("error", ALL, ids=names_of)
def test_each_carries_the_name_of_the_lock_and_a_message_to_other_processes_too(error: WheelLockError) -> None:
    assert error.lock_name == "order:42"
    assert str(error) == error.message
    assert error.args == (str(error),)
    assert repr(error) == f"{type(error).__name__}({str(error)!r})"
    assert "on fire" in str(error) or "order:42" in str(error)
    # Job queues and process pools pickle what a task raises; one that fails at that hides the error, or hangs.
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.lock_name == error.lock_name
        assert getattr(again, "reason", None) is getattr(error, "reason", None)
        assert getattr(again, "losses", None) == getattr(error, "losses", None)


def test_a_loss_says_which_lock_and_why() -> None:
    for reason in LossReason:
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
    assert str(LocksLost({"a": LossReason.KEY_GONE})) == "The lock 'a' was lost: key gone"


def test_a_name_in_a_message_is_escaped_and_bounded() -> None:
    names: list[str | bytes] = [*NASTY, *(name.encode("utf-8", "surrogatepass") for name in NASTY), b"\xff\xfe"]
    for name in names:
        losses = {name: LossReason.TAKEN}
        for error in (
            LockLost(name, LossReason.TAKEN),
            LocksLost(losses),
            LocksLost({**losses, "b": LossReason.TAKEN}),
        ):
            assert str(error).isascii()
            assert str(error).isprintable()
            assert len(str(error)) < 300
            assert error.lock_name == name


@given(name=st.text() | st.binary(max_size=600))
def test_any_name_is_quoted_in_printable_ascii(name: str | bytes) -> None:
    shown = quoted(name)
    assert shown.isascii()
    assert shown.isprintable()
    assert shown[0] == shown[-1]
    assert shown[0] in "'\""
    assert len(shown) <= 85 * 10  # a character outside the basic plane is escaped to ten


def test_how_a_name_is_quoted() -> None:
    assert quoted("x" * 80) == repr("x" * 80)
    assert quoted("x" * 81) == repr("x" * 80 + "...")
    assert quoted("ü:42") == quoted("ü:42".encode()) == r"'\xfc:42'"
    assert quoted(None) == "(no name)"
    assert "(no name)" in str(LockLost(None, LossReason.TAKEN))
