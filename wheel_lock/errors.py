"""The exceptions of the library, and the reasons of a loss.

All lock errors derive from redis-py's LockError, so code that catches redis-py's lock errors keeps working; network errors
also derive from redis-py's ConnectionError or TimeoutError. Each carries the name of the lock.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from wheel_lock.holder import Holder

_SHOWN_CHARACTERS = 80

AnyError = TypeVar("AnyError", bound=Exception)


def text_of(name: str | bytes) -> str:
    """Return ``name`` as text; bytes that are not UTF-8 are escaped."""
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name


def quoted(name: str | bytes | None) -> str:
    """Return ``name`` escaped and shortened, fit for a message or a log line.

    >>> quoted(b"order:42")
    "'order:42'"
    >>> quoted("two\\nlines")
    "'two\\\\nlines'"
    """
    if name is None:
        return "(no name)"
    text = text_of(name)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "..."
    return ascii(text)


def counted(locks: int) -> str:
    """Return the number of locks with its noun.

    >>> counted(1), counted(2)
    ('1 lock', '2 locks')
    """
    return "1 lock" if locks == 1 else f"{locks} locks"


def copied(error: AnyError) -> AnyError:
    """Return a copy of an exception for another caller: a traceback belongs to one caller."""
    another = copy.copy(error)
    if error.__cause__ is not None:  # setting it hides the context in which the copy is raised
        another.__cause__ = error.__cause__
    return another


def missing_extra(module: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error for ``module``, which was imported without a package of its extra; ``error`` names that."""
    package = (error.name or "").partition(".")[0]
    return ModuleNotFoundError(f"{module} needs {package}: pip install 'wheel-lock[{extra}]'", name=package)


class LossReason(enum.StrEnum):
    """The reason for which a lease ended without a release. The value is a text for messages and logs."""

    NOT_CONFIRMED = "not confirmed in time"
    KEY_GONE = "key gone"
    TAKEN = "taken by another"
    RENEWAL_LIMIT = "renewal limit reached"
    HOLD_LIMIT = "hold limit reached"
    ABANDONED = "abandoned"
    CONTEXT_CLOSED = "context closed"
    THREAD_DIED = "renewal thread died"
    FORKED = "held by the parent process"
    INTERNAL_ERROR = "internal error"


class WheelLockError(LockError):
    """Base class of the library's errors.

    Attributes:
        lock_name: The name of the lock as the caller gave it, or None if several are concerned.
    """

    def __init__(self, message: str, lock_name: str | bytes | None = None) -> None:
        super().__init__(message, lock_name)  # type: ignore[arg-type]  # redis-py annotates str only
        self.args: tuple[Any, ...] = (message,)  # without the name, which LockError of redis-py 7 leaves in it

    def __repr__(self) -> str:
        return BaseException.__repr__(self)  # with the text, which RedisError of redis-py 8 leaves out


class LockNotHeld(WheelLockError):
    """The lock object holds nothing: it was never acquired, or has been released already."""


class LockAlreadyHeld(WheelLockError):
    """The calling thread or task holds the lock already, and the lock is not reentrant, so the wait would never end."""


class UpgradeRefused(LockAlreadyHeld):
    """The calling thread or task holds a read-write lock for reading, and tries to acquire it for writing."""


class LockNotAcquired(WheelLockError):
    """A ``with`` statement did not acquire the lock within its blocking timeout or its number of attempts.

    Attributes:
        holder: What held the lock just after the refusal; None if that is not known, or the lock was free again.
    """

    def __init__(self, message: str, lock_name: str | bytes | None = None, holder: Holder | None = None) -> None:
        super().__init__(message, lock_name)
        self.holder = holder


class HolderChanged(WheelLockError):
    """A lock was not released by force, because its holders were others than a moment before."""


class WrongThread(WheelLockError):
    """The lease belongs to another thread or task. Locks with the option ``thread_local=False`` do not raise this."""


class LockLost(WheelLockError, LockNotOwnedError):
    """The lease ended without a release.

    Attributes:
        reason: A :class:`LossReason`.
    """

    def __init__(self, lock_name: str | bytes | None, reason: LossReason) -> None:
        super().__init__(f"The lock {quoted(lock_name)} was lost: {reason}", lock_name)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.lock_name, self.reason), self.__dict__  # exceptions cross process pools


class LocksLost(LockLost):
    """Several leases ended without a release.

    Attributes:
        losses: The reason of each, by name.
    """

    def __init__(self, losses: dict[str | bytes, LossReason]) -> None:
        name, reason = next(iter(losses.items()))
        super().__init__(name, reason)
        self.losses = losses
        if len(losses) > 1:
            self.message: str = f"{len(losses)} locks were lost, among them {quoted(name)}: {reason}"
            self.args: tuple[Any, ...] = (self.message,)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.losses,), self.__dict__


def internal_error(error: Exception, name: str | bytes | None) -> WheelLockError:
    """Return the error to raise for a request that failed because of a bug in the library; ``error`` is its cause."""
    failure = WheelLockError(f"An internal error: {error!r} (lock {quoted(name)})", name)
    failure.__cause__ = error
    return failure


class InvalidHandoff(WheelLockError, ValueError):
    """A text given to ``adopt`` was not returned by ``export``, or is no longer valid."""


class LocksNotAdopted(WheelLockError):
    """Some of the locks given to ``adopt_many`` could not be adopted, for another reason than that they are gone.

    Attributes:
        errors: The error of each of these, by name. A text whose adoption was never sent can still be used.
        locks: The result of the call: the lock of each name, held, or None. Only in the process that raises it.
    """

    def __init__(
        self, errors: dict[str | bytes, Exception], locks: Mapping[str | bytes, object] = MappingProxyType({})
    ) -> None:
        name, first = next(iter(errors.items()))
        super().__init__(f"{counted(len(errors))} could not be adopted, among them {quoted(name)}: {first}", name)
        self.errors = errors
        self.locks = locks

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors,)  # without the locks, which are of this process


class LockTimeout(WheelLockError, RedisTimeoutError):
    """The server did not answer in time, so the outcome of the command is not known."""


class LockUnavailable(WheelLockError, RedisConnectionError):
    """There is no usable connection to the server."""


class NotReplicated(LockUnavailable):
    """Fewer replicas than ``min_replicas`` acknowledged a grant in time. The lock has been released again."""


class LockServerError(WheelLockError, ResponseError):
    """The server answered with an error.

    Attributes:
        code: The error code, such as ``READONLY`` or ``NOPERM``, also if a script's error wraps it; ``ERR`` if none.
    """

    def __init__(self, message: str, lock_name: str | bytes | None = None, code: str = "ERR") -> None:
        super().__init__(message, lock_name)
        self.code = code


class StaleFence(WheelLockError):
    """A guard has refused a holder that was overtaken: the protected resource has seen a larger fence.

    Attributes:
        name: The name under which the resource keeps the fence: the lock's key as text, with the prefix of its context.
        fence: The fence that was refused.
        newer: The fence that the resource has seen; None if it is not known.
    """

    def __init__(self, name: str, fence: int, newer: int | None = None) -> None:
        seen = "a newer one" if newer is None else newer
        super().__init__(f"The fence {fence} of {quoted(name)} is stale: the resource has seen {seen}", name)
        self.name: str = name
        self.fence = fence
        self.newer = newer

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.fence, self.newer), self.__dict__


class NoFenceTable(WheelLockError):
    """A guard has found no table ``wheel_lock_fences`` in the database. It is made by a migration, never by a guard."""


class TooManyLocks(WheelLockError):
    """The context holds as many locks as its ``max_held`` allows."""


class ContextClosed(WheelLockError):
    """The context has been closed."""


class TimerStopped(RuntimeError):
    """The timer has been stopped and takes no new timeouts."""


class TooManyTimeouts(RuntimeError):
    """The timer has as many pending timeouts as its ``max_pending`` allows."""
