"""Frozen settings, and the validation of all parameters.

Validation precedes any I/O: what a function here refuses, it does by a ValueError whose message names the parameter and
shows the value. Names of settings have units.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import partial
from typing import Any, Self, TypeVar, cast

Name = TypeVar("Name", bound="str | bytes")
T = TypeVar("T")

logger: logging.Logger = logging.getLogger("wheel_lock")

MAX_NAME_BYTES = 512
MAX_TOKEN_BYTES = 512
MAX_OWNER_LENGTH = 64  # characters, and bytes as UTF-8
RESERVED = "wheel_lock:"  # prefix of companion keys: a lock with such a name could overwrite one of another lock
_RESERVED = RESERVED.encode()
MAX_COUNT = 2**53 - 1  # the largest number that a Lua script represents exactly
# About 31 years: the bound of every time, and of the time-to-live after an extension. PEXPIRE overflows near 2**63
# milliseconds, and scripts count exactly up to 2**53.
MAX_SECONDS = 1e9
MAX_TTL_MS = int(MAX_SECONDS * 1000)
DRIFT = 0.99  # Redlock page: allow for clocks that run at different rates; 1 % is ten times what NTP tolerates
MARGIN_S = 0.002  # the server's own expiry has a resolution of a millisecond
MIN_TIMEOUT_S = 0.01
POLL_EVERY_S = 0.1
_SHOWN_CHARACTERS = 80
_HUGE = 1.7e308
MIN_RENEWED_TIMEOUT_S = 0.05  # five ticks of 10 ms: one to send the renewal, four for its reply
TICK_S = 0.01  # a timer's default
# The least number of ticks from a renewal to the local deadline. A loss is reported in the last but one of them; a lease
# that is due less than two ticks earlier would be due again as soon as it is scheduled, and be renewed continuously.
LEFT_TICKS = 3
MAX_SLACK = 0.5  # at most twice as many renewals
_KEEPER = "WHEEL_LOCK_KEEPER"
MAX_SOCKET_PATH_BYTES = 107  # of the address of a unix socket, which ends with a zero byte
_PLAIN = frozenset({int, float, bool, type(None)})  # types whose hash and comparison no user can override


def seconds(
    what: str, value: object, *, least: float = 0.0, above: float | None = None, most: float = MAX_SECONDS
) -> float:
    """Return ``value`` as a float. Raises ValueError, naming it ``what``, unless it is a finite number in these bounds."""
    number = _as_float(what, value)
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, not {_shown(value)}")
    if number < least or (above is not None and number <= above):
        bound = f"more than {above:g}" if above is not None else f"at least {least:g}"
        raise ValueError(f"{what} must be {bound} seconds, not {_shown(value)}")
    if number > most:
        raise ValueError(f"{what} must be at most {most:g} seconds, not {_shown(value)}")
    return number


def _as_float(what: str, value: object) -> float:
    """Return ``value`` as a plain float, without calling operators of a subclass; an int beyond the range as +-1.7e308."""
    if type(value) is float:
        return value
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{what} must be a number of seconds, not {_shown(value)}")
    try:
        return int.__float__(value)
    except OverflowError:
        return math.copysign(_HUGE, int.__gt__(value, 0) - 0.5)


def _shown(value: object) -> str:
    """Return the ``repr()`` of ``value`` for a message, shortened to 80 characters. Never raises."""
    try:
        text = repr(value)
    except Exception:  # an integer of more than 4,300 digits, or a __repr__ that fails
        text = f"a value of the type {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def count(what: str, value: object, *, least: int, most: int = MAX_COUNT) -> int:
    """Return ``value`` as an int. Raises ValueError, naming it ``what``, unless it is one from ``least`` to ``most``."""
    number = int.__index__(value) if isinstance(value, int) and not isinstance(value, bool) else None
    if number is None or number < least:
        raise ValueError(f"{what} must be a whole number of at least {least}, not {_shown(value)}")
    if number > most:
        raise ValueError(f"{what} must be a whole number of at most {most}, not {_shown(value)}")
    return number


def share(what: str, value: object, *, most: float) -> float:
    """Return ``value`` as a float. Raises ValueError, naming it ``what``, unless it is a number from 0 to ``most``."""
    try:
        return seconds(what, value, most=most)
    except ValueError:
        raise ValueError(f"{what} must be a number from 0 to {most:g}, not {_shown(value)}") from None


def milliseconds(time_s: float) -> int:
    """Return ``time_s`` seconds in milliseconds, rounded, at least 1."""
    return max(1, round(time_s * 1000))


def extension_ms(additional_time: float, left_s: float) -> int:
    """Return the time of an extension in milliseconds. Raises ValueError if the time-to-live would exceed MAX_SECONDS.

    ``left_s`` is the least remaining time, in seconds, to which it is added; 0.0 if it replaces that.
    """
    time_s = seconds("additional_time", additional_time, above=0.0)
    if time_s + left_s > MAX_SECONDS:
        raise too_long(time_s, f"{left_s:.10g} s that are left")
    return milliseconds(time_s)


def too_long(time_s: float, left: str) -> ValueError:
    """Return the error for an extension by ``time_s`` of a lease with the remaining time ``left``."""
    return ValueError(
        f"additional_time and what is left must be at most {MAX_SECONDS:g} seconds together, not {time_s:.10g} s and {left}"
    )


def latest_renewal_s(timeout_s: float, tick_s: float) -> float:
    """Return the longest renewal interval, in seconds, for a timer with ticks of ``tick_s`` seconds.

    A renewal that was sent later would leave no tick between its reply and the report of the loss, and the lease would be
    renewed again at once.
    """
    return timeout_s * DRIFT - MARGIN_S - LEFT_TICKS * tick_s


def shortest_timeout_s(tick_s: float) -> float:
    """Return the shortest timeout, in seconds, of a lease that a timer with ticks of ``tick_s`` seconds can renew."""
    return (MARGIN_S + (1 + LEFT_TICKS) * tick_s) / DRIFT


def interval_s(timeout_s: float, renew_every: float) -> float:
    """Return ``renew_every`` in seconds, reduced with a WARNING in the log if it is too close to the local deadline."""
    every_s = seconds("renew_every", renew_every, above=0.0)
    valid_s, latest_s = timeout_s * DRIFT - MARGIN_S, latest_renewal_s(timeout_s, TICK_S)
    if every_s >= valid_s:
        raise ValueError(
            f"renew_every must be less than {valid_s:.10g} seconds, which is how long a lease with a timeout of "
            f"{timeout_s:.10g} s is valid, not {_shown(renew_every)}"
        )
    if every_s <= latest_s:
        return every_s
    logger.warning(
        "renew_every=%.10g is rounded down to %.10g s: with a timeout of %.10g s the reply to a later renewal could come "
        "too late",
        every_s,
        latest_s,
        timeout_s,
    )
    return latest_s


def lock_name(name: object, prefix: bytes) -> bytes:
    """Return the key of a lock at the server, 1 to 512 bytes: the context's prefix and the name, text encoded as UTF-8."""
    most = MAX_NAME_BYTES - len(prefix)
    if type(name) is str and name.isascii() and 0 < len(name) <= most and not name.startswith(RESERVED):
        return prefix + name.encode()  # the fast path: bulk calls validate a million names
    data = _binary(f"a lock name after the prefix {prefix.decode()!r}" if prefix else "a lock name", name, most)
    if data.startswith(_RESERVED):
        raise ValueError(
            f"a lock name must not begin with {RESERVED!r}, which is for the keys that accompany locks: {_shown(name)}"
        )
    return prefix + data


def name_prefix(prefix: object) -> bytes:
    """Return the prefix of a context's locks, text, as UTF-8, if it leaves room for a name."""
    if not isinstance(prefix, str):
        raise ValueError(f"prefix must be a str, not {type(prefix).__name__}")
    data = _binary("prefix", prefix, MAX_NAME_BYTES - 1) if prefix else b""
    if data.startswith(_RESERVED) or (data and _RESERVED.startswith(data)):
        raise ValueError(f"prefix must not make names begin with {RESERVED!r}, not {_shown(prefix)}")
    return data


def plain_name(name: Name) -> Name:
    """Return a lock's name as an exact str or bytes: methods of a subclass would run on the timer's thread."""
    plain: str | bytes = name  # lock_name() refuses what is neither
    if isinstance(name, str):
        plain = str.__str__(name)
    elif isinstance(name, bytes):
        plain = bytes.__bytes__(name)
    return cast("Name", plain)


def lock_token(token: object) -> bytes:
    """Return a caller token as 1 to 512 bytes. The message of an error does not show it."""
    return _binary("a token", token, MAX_TOKEN_BYTES, secret=True)


def readable_text(what: str, value: object, *, most_bytes: int) -> str:
    """Return the owner or the label of a context, the setting ``what``: 1 to 64 printable characters."""
    text = str.__str__(value) if isinstance(value, str) else ""
    if not 1 <= len(text) <= MAX_OWNER_LENGTH or not text.isprintable() or len(text.encode()) > most_bytes:
        raise ValueError(
            f"{what} must be a str of 1 to {MAX_OWNER_LENGTH} printable characters, with at most {most_bytes} bytes as "
            f"UTF-8, not {_shown(value)}"
        )
    return text


def process_owner() -> str:
    """Return the owner of a context that is given none: the host's name and the number of this process."""
    number = f":{os.getpid()}"
    return _host_name()[: MAX_OWNER_LENGTH - len(number)] + number


@functools.cache
def _host_name() -> str:
    try:
        name = socket.gethostname()
    except OSError:  # a sandbox may refuse the call
        name = ""
    return "".join(character for character in name if character.isascii() and character.isprintable()) or "localhost"


def _binary(what: str, value: object, most: int, *, secret: bool = False) -> bytes:
    if isinstance(value, str):
        try:
            data = str.encode(value)
        except UnicodeEncodeError as error:
            shown = "" if secret else f", in {_shown(value)}"
            raise ValueError(f"{what} must be valid Unicode text: {error.reason}{shown}") from None
    elif isinstance(value, bytes):
        data = bytes.__bytes__(value)
    else:
        raise ValueError(f"{what} must be str or bytes, not {type(value).__name__}")
    if not 1 <= len(data) <= most:
        raise ValueError(f"{what} must have 1 to {most} bytes, not {len(data)}")
    return data


def _checked(default: T, check: Callable[[str, Any], Any]) -> T:
    """Return a field. ``check`` takes the name and the value of a setting or term, and returns the value to store."""
    return field(default=default, metadata={"check": check})


def _or_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda what, value: None if value is None else check(what, value)


def _switch(what: str, value: object) -> bool:
    return bool(value)


def _strict_switch(what: str, value: object) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{what} must be True or False, not {_shown(value)}")
    return value


def _blocking(what: str, value: bool) -> bool:
    checked_wait(value, None)
    return value


_time = partial(seconds, above=0.0)
_positive = partial(count, least=1)


@dataclass(frozen=True, slots=True)
class LockOptions:
    """The validated terms of one lock, with their defaults; see :func:`lock_options`.

    ``retry_every_s`` is None for waiters that are woken by pub/sub; they poll every ``fallback_s``, or, if that is None, at
    the context's ``fallback_interval``.
    """

    timeout_s: float
    timeout_ms: int
    renew_every_s: float | None
    max_renewals: int | None = _checked(None, _or_none(partial(count, least=0)))
    max_hold_s: float | None = _checked(None, _or_none(_time))
    blocking: bool = _checked(True, _blocking)
    blocking_timeout_s: float | None = _checked(None, _or_none(seconds))
    retry_every_s: float | None = _checked(None, _or_none(_time))
    fallback_s: float | None = _checked(None, _or_none(_time))
    max_attempts: int | None = _checked(None, _or_none(_positive))
    fencing: bool = _checked(False, _switch)
    thread_local: bool = _checked(True, _switch)


_TERMS: Mapping[str, Field[Any]] = {
    option.name.removesuffix("_s"): option for option in fields(LockOptions) if option.metadata
}
TERMS: Mapping[str, Any] = {
    "renew": True,
    "renew_every": None,
    **{term: option.default for term, option in _TERMS.items()},
}
"""The parameters of a lock beside its name and its timeout, and their defaults."""


def lock_options(timeout: float = 30.0, **others: Any) -> LockOptions:
    """Validate a lock's parameters, those of :meth:`wheel_lock.LockContext.lock`, and return them. Results are cached."""
    if type(timeout) in _PLAIN and (not others or _PLAIN.issuperset(map(type, others.values()))):
        return _cached_options(timeout, **others)
    # A value without a hash is invalid, and one with its own comparison could match another in the cache.
    return _cached_options.__wrapped__(timeout, **others)


def checked_wait(blocking: object, blocking_timeout: float | None) -> None:
    """Raise ValueError if ``blocking`` is a number, perhaps meant as the limit, or if there is a limit of no wait."""
    if not isinstance(blocking, bool):
        raise ValueError(f"blocking must be True or False, not {blocking!r}; a limit is blocking_timeout={blocking!r}")
    if not blocking and blocking_timeout is not None:
        raise ValueError("blocking_timeout limits a wait, and with blocking=False there is none: leave one of them out")


@functools.lru_cache(maxsize=1024, typed=True)
def _cached_options(timeout: float = 30.0, *, renew: bool = True, renew_every: Any = None, **terms: Any) -> LockOptions:
    timeout_s = seconds("timeout", timeout, least=MIN_RENEWED_TIMEOUT_S if renew else MIN_TIMEOUT_S)
    every_s = timeout_s / 3.0 if renew else None
    if renew_every is not None:
        every_s = interval_s(timeout_s, renew_every)
        if not renew:
            raise ValueError(f"renew_every={_shown(renew_every)} makes no sense together with renew=False")
    if terms.get("max_attempts") is not None and terms.get("retry_every") is None:
        terms["retry_every"] = POLL_EVERY_S
    checked = {_TERMS[term].name: _TERMS[term].metadata["check"](term, value) for term, value in terms.items()}
    return LockOptions(timeout_s, milliseconds(timeout_s), every_s, **checked)


def keeper_place(what: str, where: object) -> bool | str:
    """Return where the keeper of a context is: False without one, True for a child of this process, else a path.

    None stands for the environment variable WHEEL_LOCK_KEEPER; without that, for none.
    """
    if where is None:
        what, where = _KEEPER, os.environ.get(_KEEPER, False)
    if isinstance(where, bool):
        return where
    if not isinstance(where, (str, os.PathLike)):
        raise ValueError(f"{what} must be True, False or the path of a socket, not {_shown(where)}")
    return socket_path(what, os.path.abspath(os.fsdecode(where)) if os.fspath(where) else "")


def socket_path(what: str, path: str) -> str:
    """Return ``path``. Raises ValueError, naming it ``what``, if it is empty, or too long for a unix socket."""
    if not path or "\0" in path or len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"{what} must be a path of 1 to {MAX_SOCKET_PATH_BYTES} bytes, not {_shown(path)}")
    return path


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """The validated settings of a context, with their defaults. :class:`wheel_lock.LockContext` documents them, the last
    three :class:`wheel_lock.QuorumContext`.

    Attributes:
        max_calls_in_flight: Unanswered renewal script calls per node; leases due beyond that wait in the overdue set.
        backoff_first_s: Pause after the first failed attempt to connect; it doubles, with jitter, up to ``backoff_max_s``.
        backoff_max_s: The longest such pause.
        fallback_s: ``fallback_interval``.
    """

    # A script call blocks the server until it ends: 5,000 leases take about 8 ms.
    batch_size: int = _checked(1000, partial(count, least=1, most=5000))
    max_calls_in_flight: int = _checked(1024, _positive)
    response_timeout_s: float = _checked(5.0, _time)
    connect_timeout_s: float = _checked(2.0, _time)
    backoff_first_s: float = _checked(0.02, _time)
    backoff_max_s: float = _checked(0.5, _time)
    close_timeout_s: float = _checked(5.0, _time)
    release_on_close: bool = _checked(True, _switch)
    fallback_s: float = _checked(5.0, _time)
    max_held: int | None = _checked(None, _or_none(_positive))
    max_waiting: int | None = _checked(None, _or_none(_positive))
    min_replicas: int = _checked(0, partial(count, least=0))
    replica_timeout_s: float = _checked(1.0, _time)
    declare_keys: bool = _checked(False, _switch)
    track_acquisitions: bool = _checked(False, _switch)
    renewal_slack: float = _checked(1 / 4, partial(share, most=MAX_SLACK))
    prefix: bytes = b""
    timeout_s: float = _checked(30.0, partial(seconds, least=MIN_RENEWED_TIMEOUT_S))
    blocking_timeout_s: float | None = _checked(None, _or_none(seconds))
    owner: str | None = _checked(None, _or_none(partial(readable_text, most_bytes=MAX_OWNER_LENGTH)))
    readable_owner: bool = _checked(True, _switch)
    label: str | None = _checked(None, _or_none(partial(readable_text, most_bytes=4 * MAX_OWNER_LENGTH)))
    watch: bool = _checked(False, _strict_switch)
    release_on_crash: bool | str | None = _checked(None, keeper_place)
    release_delay_s: float = _checked(0.0, seconds)
    node_timeout_s: float | None = _checked(None, _or_none(_time))
    longest_timeout_s: float = _checked(0.0, seconds)
    trust_new_nodes: bool = _checked(True, _switch)

    def __post_init__(self) -> None:
        for setting, option in _OPTIONS.items():
            if check := option.metadata.get("check"):
                object.__setattr__(self, option.name, check(setting, getattr(self, option.name)))
        if self.backoff_first_s > self.backoff_max_s:
            raise ValueError(
                f"backoff_first must not exceed backoff_max of {self.backoff_max_s:g} s, not {self.backoff_first_s!r}"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the options of a context that is ``given`` these settings; it has the defaults of the others."""
        values = {option.name: given[setting] for setting, option in _OPTIONS.items() if setting in given}
        return cls(**{**values, "prefix": name_prefix(given.get("prefix", ""))})

    def of_lock(self, timeout: float | None, given: Mapping[str, Any]) -> LockOptions:
        """Return the options of a lock, with the context's defaults for what is None; see :func:`lock_options`.

        ``given`` are its terms, or the ``locals()`` of a method that writes them out for those who complete and read them.
        A call that repeats all their names could pass one in place of another unseen.
        """
        terms: dict[str, Any] = {}  # those that are no defaults: the cache finds few terms sooner
        for term, value in given.items():
            if term in TERMS and value is not TERMS[term]:
                terms[term] = value
        if self.blocking_timeout_s is not None:
            terms.setdefault("blocking_timeout", self.blocking_timeout_s)
        return lock_options(self.timeout_s if timeout is None else timeout, **terms)

    def check_keeper(self, obstacle: str | None) -> None:
        """Raise ValueError if a keeper is asked for that could release nothing, for that reason."""
        if self.release_on_crash and obstacle is not None:
            raise ValueError(f"release_on_crash, or WHEEL_LOCK_KEEPER, is not possible: {obstacle}")

    @property
    def current_owner(self) -> str:
        """The owner, in this process."""
        return process_owner() if self.owner is None else self.owner


_OPTIONS: Mapping[str, Field[Any]] = {  # by the names of settings
    "fallback_interval" if option.name == "fallback_s" else option.name.removesuffix("_s"): option
    for option in fields(ContextOptions)
}
SETTINGS: Mapping[str, Any] = {
    "timer": None,
    **{setting: option.default for setting, option in _OPTIONS.items()},
    "prefix": "",
}
"""The settings of a context, and their defaults."""
