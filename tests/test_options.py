"""Options: whatever cannot work is refused before anything happens, in a sentence that names it and shows it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ids import case_id
from wheel_lock.lease import local_deadline
from wheel_lock.options import (
    DRIFT,
    MARGIN_S,
    MAX_SECONDS,
    MAX_TTL_MS,
    MIN_RENEWED_TIMEOUT_S,
    MIN_TIMEOUT_S,
    ContextOptions,
    LockOptions,
    _cached_options,
    count,
    extension_ms,
    lock_name,
    lock_options,
    lock_token,
    plain_name,
    seconds,
)

# From Any on: the types forbid these values, which is why callers without a type checker need an error.
make_lock_options: Callable[..., LockOptions] = lock_options
make_context_options: Callable[..., ContextOptions] = ContextOptions

NO_SECONDS: list[object] = [
    *(math.nan, math.inf, -math.inf, -1, -0.001, -(2**63), 2**63, 1e300, True, False, "30", b"30", 10**400),
    *(-(10**400), Decimal(30), Fraction(30), timedelta(seconds=30), 30j, object()),
]
NO_COUNTS: list[object] = [math.nan, math.inf, -1, -(2**63), 1.0, 2.5, True, False, "3", b"3", Decimal(3), object()]


def refusal(call: Callable[..., object], **values: object) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        call(**values)
    return str(caught.value)


def shown(value: object) -> str:
    """The start of what a message must show of `value`: long ones are shortened."""
    return repr(value)[:20]


LOCK_SECONDS = ["timeout", "renew_every", "blocking_timeout", "max_hold", "retry_every"]
CONTEXT_SECONDS = [*("response_timeout_s", "connect_timeout_s", "backoff_first_s", "backoff_max_s", "close_timeout_s")]
LOCK_COUNTS = ["max_renewals", "max_attempts"]
CONTEXT_COUNTS = ["batch_size", "max_calls_in_flight", "max_held"]


@pytest.mark.parametrize(
    ("make", "parameter", "bad"),
    [
        *((make_lock_options, parameter, NO_SECONDS) for parameter in LOCK_SECONDS),
        (make_lock_options, "timeout", [None]),
        *(
            (make_lock_options, parameter, [0, 0.0, -0.0])
            for parameter in LOCK_SECONDS
            if parameter != "blocking_timeout"
        ),
        *((make_lock_options, parameter, NO_COUNTS) for parameter in LOCK_COUNTS),
        # Options are cached by their values; the cache must not be the first to use what cannot be hashed.
        *((make_lock_options, parameter, [[30]]) for parameter in [*LOCK_SECONDS, *LOCK_COUNTS]),
        *((make_context_options, parameter, [*NO_SECONDS, None, 0, 0.0]) for parameter in CONTEXT_SECONDS),
        *((make_context_options, parameter, [*NO_COUNTS, 0]) for parameter in CONTEXT_COUNTS),
        (make_context_options, "batch_size", [5001, 2**63]),
        (make_context_options, "renewal_slack", [*NO_SECONDS, None, 0.51, 1, -0.01]),
    ],
)
def test_what_is_no_time_or_no_number_is_refused_by_name_and_shown(
    make: Callable[..., object], parameter: str, bad: list[object]
) -> None:
    for value in bad:
        message = refusal(make, **{parameter: value})
        assert parameter.removesuffix("_s") in message
        assert shown(value) in message


@pytest.mark.parametrize(
    ("make", "values", "shown"),
    [
        (make_lock_options, {"max_attempts": 0}, ["max_attempts must be a whole number of at least 1, not 0"]),
        (make_context_options, {"renewal_slack": 1}, ["renewal_slack must be a number from 0 to 0.5, not 1"]),
        (make_lock_options, {"timeout": 0.0499}, ["0.0499"]),
        (make_lock_options, {"timeout": 0.0099, "renew": False}, ["0.0099"]),
        *(
            (make_lock_options, {"timeout": 30.0, "renew_every": every}, ["renew_every", "29.698", repr(every)])
            for every in (30.0, 29.698, 29.7, 31.0, 1e9)
        ),
        (make_lock_options, {"renew": False, "renew_every": 5.0}, ["renew_every=5.0", "renew=False"]),
        (make_context_options, {"backoff_first_s": 2.0, "backoff_max_s": 1.5}, ["backoff_first", "2.0", "1.5"]),
        (extension_ms, {"additional_time": MAX_SECONDS, "left_s": 1.0}, ["additional_time", "1000000000 s"]),
    ],
)
def test_what_exceeds_a_limit_is_refused_with_it(
    make: Callable[..., object], values: dict[str, object], shown: list[str]
) -> None:
    message = refusal(make, **values)
    assert [text for text in shown if text not in message] == []


def test_the_smallest_and_the_largest_that_are_allowed() -> None:
    assert lock_options(max_renewals=0).max_renewals == 0
    assert lock_options(blocking_timeout=0).blocking_timeout_s == 0
    assert ContextOptions(batch_size=5000).batch_size == 5000
    assert ContextOptions(renewal_slack=0).renewal_slack == 0.0
    assert ContextOptions(renewal_slack=0.5).renewal_slack == 0.5
    assert ContextOptions(backoff_first_s=1.5, backoff_max_s=1.5).backoff_max_s == 1.5
    assert lock_options(MIN_RENEWED_TIMEOUT_S).timeout_ms == 50
    assert lock_options(MIN_TIMEOUT_S, renew=False).timeout_ms == 10
    assert extension_ms(MAX_SECONDS, 0.0) == MAX_TTL_MS
    assert extension_ms(MAX_SECONDS - 30.0, 30.0) == MAX_TTL_MS - 30_000
    assert extension_ms(1e-6, 30.0) == 1


@given(timeout=st.floats(MIN_RENEWED_TIMEOUT_S, MAX_SECONDS), share=st.floats(1e-3, 1.2))
def test_renew_every_is_allowed_exactly_while_the_lease_is_valid(timeout: float, share: float) -> None:
    every = timeout * share
    if every < local_deadline(0.0, timeout):
        # Three ticks before the end at the latest; what is more is rounded down to that.
        assert lock_options(timeout, renew_every=every).renew_every_s == min(every, local_deadline(-0.03, timeout))
    else:
        assert repr(every) in refusal(make_lock_options, timeout=timeout, renew_every=every)


@pytest.mark.parametrize(
    ("timeout", "every", "kept"), [(0.05, 0.04, "0.0175"), (1.0, 0.985, "0.958"), (30, 29.69, "29.668")]
)
def test_an_interval_that_is_rounded_down_is_said_once(
    timeout: float, every: float, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    _cached_options.cache_clear()
    for _ in range(3):
        assert f"{lock_options(timeout, renew_every=every).renew_every_s:.10g}" == kept
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert f"renew_every={every:g} is rounded down to {kept} s" in record.getMessage()
    lock_options(timeout, renew_every=float(kept) - 1e-6)
    assert len(caplog.records) == 1


class Odd(float):
    """A number that says of itself what is not so."""

    def _yes(self, other: object) -> bool:
        return True

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _yes

    def __hash__(self) -> int:
        return 7

    def __float__(self) -> float:
        return math.nan

    def __radd__(self, other: object) -> float:
        return math.inf

    def __mul__(self, other: object) -> float:
        return math.nan


class OddCount(int):
    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return False

    def __int__(self) -> int:
        return -1

    __index__ = __int__


@pytest.mark.parametrize("parameter", ["timeout", "renew_every", "blocking_timeout", "max_hold", "retry_every"])
def test_a_number_is_what_it_is_whatever_its_class_makes_of_it(parameter: str) -> None:
    attribute = f"{parameter}_s"
    for number in (2.0, 3.0):  # which are the same, if they are asked
        kept = getattr(lock_options(**{parameter: Odd(number)}), attribute)
        assert type(kept) is float
        assert kept == number
    for wrong in (math.nan, math.inf, -1.0, 1e300):
        assert parameter in refusal(make_lock_options, **{parameter: Odd(wrong)})


def test_a_count_is_what_it_is_whatever_its_class_makes_of_it() -> None:
    kept = lock_options(max_renewals=OddCount(3)).max_renewals
    assert type(kept) is int
    assert kept == 3
    assert "max_renewals" in refusal(make_lock_options, max_renewals=OddCount(-3))
    options = ContextOptions(batch_size=OddCount(7), response_timeout_s=Odd(2.0))
    assert (type(options.batch_size), type(options.response_timeout_s)) == (int, float)
    assert (options.batch_size, options.response_timeout_s) == (7, 2.0)
    assert "response_timeout" in refusal(make_context_options, response_timeout_s=Odd(math.nan))


def test_an_extension_that_is_no_time_is_refused() -> None:
    for value in NO_SECONDS:
        assert "additional_time" in refusal(extension_ms, additional_time=value, left_s=0.0)


@given(timeout=st.floats(MIN_TIMEOUT_S, MAX_SECONDS))
def test_the_holder_stops_believing_before_the_server_expires_the_key(timeout: float) -> None:
    # The server counts whole milliseconds, the holder does not: rounding must not eat up the margin.
    options = lock_options(timeout, renew=False)
    assert options.timeout_ms >= 1
    assert local_deadline(0.0, options.timeout_s) < options.timeout_ms / 1000
    assert local_deadline(0.0, options.timeout_s) == pytest.approx(timeout * DRIFT - MARGIN_S)


def test_lock_options_are_frozen_and_shared() -> None:
    options = lock_options(7.0, max_renewals=3)
    assert lock_options(7.0, max_renewals=3) is options
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.timeout_s = 8.0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        ContextOptions().batch_size = 5  # type: ignore[misc]


def test_a_value_that_equals_a_good_one_is_no_better_for_it() -> None:
    # The cache must not take True for 1.
    assert lock_options(1).timeout_s == 1.0
    assert "True" in refusal(make_lock_options, timeout=True)
    assert lock_options(max_attempts=1).max_attempts == 1
    assert "True" in refusal(make_lock_options, max_attempts=True)
    assert "1.0" in refusal(make_lock_options, max_attempts=1.0)


# A float holds about 300 digits, and repr() refuses more than 4,300.
@pytest.mark.parametrize("check", [seconds, count])
def test_a_bad_value_of_any_length_makes_a_short_message(check: Callable[..., object]) -> None:
    for value in ("9" * 1_000_000, 10**400, -(10**400), 10**5000, -(10**5000)):
        message = refusal(check, what="timeout", value=value, least=1)
        assert "timeout" in message
        assert len(message) < 500


# Names and tokens


@pytest.mark.parametrize(
    "name", ["order:42", "Schlüssel", "a\r\nDEL b\r\n", "\0", "{user}:1", "}{", "x" * 512, "ü" * 256], ids=case_id
)
def test_a_legal_name_or_token_is_sent_as_it_is(name: str) -> None:
    assert lock_name(name, b"") == lock_name(name.encode(), b"") == name.encode()
    assert lock_token(name) == lock_token(name.encode()) == name.encode()


@given(name=st.binary(min_size=1, max_size=512).filter(lambda name: not name.startswith(b"wheel_lock:")))
def test_any_1_to_512_bytes_are_a_name_or_a_token(name: bytes) -> None:
    assert lock_name(name, b"") == lock_token(name) == name


NO_NAMES: dict[str, list[object]] = {
    "not 0": ["", b""],
    "not 513": ["x" * 513, b"x" * 513],
    "not 514": ["ü" * 257],
    "not 1000000": ["x" * 1_000_000, b"\0" * 1_000_000],
    r"'\ud800'": ["\ud800"],
    r"order:\udfff:42": ["order:\udfff:42"],
    r"\udead": ["\udead" * 1_000_000],
    **{type(value).__name__: [value] for value in (None, 42, True, 1.5, ["a"], bytearray(b"a"), memoryview(b"a"))},
}


@pytest.mark.parametrize("said", NO_NAMES)
def test_anything_else_is_no_name(said: str) -> None:
    for name in NO_NAMES[said]:
        message = refusal(lambda name=name: lock_name(name, b""))
        assert "lock name" in message
        assert said in message
        assert len(message) < 300
        message.encode("ascii")  # so that it can be logged anywhere


@pytest.mark.parametrize("token", ["", b"", "x" * 513, b"x" * 1_000_000, "secret-value\ud800", None, 42, True, ["a"]])
def test_a_bad_token_is_refused_without_being_shown(token: object) -> None:
    message = refusal(lambda: lock_token(token))
    assert "token" in message
    assert "secret" not in message
    assert "xxx" not in message
    assert len(message) < 300


class OddText(str):
    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"another"

    def __str__(self) -> str:
        return "another"


class OddBytes(bytes):
    def __bytes__(self) -> bytes:
        return b"another"


def test_a_text_is_what_it_is_whatever_its_class_makes_of_it() -> None:
    for text in (OddText("night"), OddBytes(b"night")):
        for kept in (lock_name(text, b""), lock_token(text)):
            assert (type(kept), kept) == (bytes, b"night")
    assert [(type(plain_name(name)), plain_name(name)) for name in (OddText("a"), OddBytes(b"a"))] == [
        (str, "a"),
        (bytes, b"a"),
    ]
    options = ContextOptions(owner=OddText("night"), label=OddText("night"))
    assert {type(options.owner), type(options.label)} == {str}
    assert {options.owner, options.label} == {"night"}


@pytest.mark.parametrize("switch", ["release_on_close", "declare_keys", "track_acquisitions", "readable_owner"])
def test_a_switch_is_a_bool(switch: str) -> None:
    kept = make_context_options(**{switch: OddCount(1)})
    assert getattr(kept, switch) is True
