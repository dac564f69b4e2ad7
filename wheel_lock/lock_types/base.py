"""What the engine must know of a kind of lock: its scripts, and what their replies mean. See ``locks/``."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command, Script
from wheel_lock.protocol.server_errors import ServerError

NO_FENCE = 0
OTHER_FENCE = -2
"""The reply to an adoption whose text has another fence than the lock."""


class Refusal(NamedTuple):
    """An acquire was refused because another holds the lock.

    Attributes:
        retry_ms: When the holder's lease ends unless it is renewed, in milliseconds from now; None where that was not
            asked for, or there is no such time.
        found: The type of the key where it is another one than the kind of lock keeps there; else None.
    """

    retry_ms: int | None
    found: str | None = None

    @property
    def is_data(self) -> bool:
        """Whether what is there is no lock of any kind: a key of another type that does not expire."""
        return self.found is not None and self.retry_ms is None


REFUSED = Refusal(None)


class Contention(enum.Enum):
    """Which of a process's waiters for one name ask the server."""

    FIRST_WAITER = enum.auto()  # the first, for all of them; who holds the lock may be known here
    SHARED = enum.auto()  # the first; when it is granted the next one asks, for there may be room
    SERVER_QUEUE = enum.auto()  # each for itself, because the server keeps the order


class LockType(Protocol):
    """One kind of lock, stateless.

    Attributes:
        name: What it is called in an exported lease.
        key_type: What the server calls the type of its key.
        args_per_lease: How many arguments of the batched scripts a lease takes.
        unique_tokens: Whether a token is known to this process alone, so that a key which holds it can only be ours.
        fenced: Whether each grant draws a fence.
        contention: Which of several waiters ask the server.
        registers_waiters: Whether a waiter whose try is refused leaves word of itself at the server, to be taken back by a
            release; the word is renewed by each try and expires by itself.
        renew: Batched renewal; replies with its exceptions.
        acquire_many: Batched acquire, None where the kind has none.
    """

    name: str
    key_type: str
    args_per_lease: int
    unique_tokens: bool
    fenced: bool
    contention: Contention
    registers_waiters: bool
    renew: Script
    acquire_many: Script | None

    def token(self) -> bytes:
        """A new token, for the first try of an acquire."""
        ...

    def next_token(self, first: bytes) -> bytes:
        """The token of another try of the same acquire; it begins as the first does where that is the waiter's name."""
        ...

    def wake_channel(self, key: bytes) -> bytes:
        """The channel on which those who wait for this kind of lock are woken."""
        ...

    def queue_key(self, key: bytes) -> bytes:
        """What the line is found by in which they stand."""
        ...

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """The command that acquires.

        Args:
            lease: What is to be granted.
            ttl_ms: Its time-to-live in milliseconds.
            again: An earlier try's outcome is not known.
            patience_ms: The caller will wait if it is refused, wants to know for how long, and will be heard of again
                within so many milliseconds; 0 where it will not wait.
        """
        ...

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """The fence of the grant (NO_FENCE where there is none), a refusal, or the server's error."""
        ...

    def release(self, lease: Lease) -> Command:
        """The command that releases."""
        ...

    def parse_release(self, reply: Reply) -> int | LossReason | ServerError:
        """How many listeners the release has woken, why there was nothing to release, or the server's error."""
        ...

    def release_many(self, leases: Sequence[Lease]) -> Command:
        """The command that releases many; replies with its exceptions."""
        ...

    def extend(self, lease: Lease, time_ms: int, *, replace: bool) -> Command:
        """The command that changes the time-to-live."""
        ...

    def parse_extend(self, reply: Reply) -> int | LossReason | None:
        """The new time-to-live in milliseconds, or why there is none."""
        ...

    def locked(self, key: bytes) -> Command:
        """The command that asks whether anybody holds it."""
        ...

    def parse_locked(self, reply: Reply) -> bool:
        """Whether anybody does."""
        ...

    def owned(self, lease: Lease) -> Command:
        """The command that asks whether ``lease`` is what the server knows."""
        ...

    def parse_owned(self, reply: Reply, lease: Lease) -> bool:
        """Whether it is."""
        ...

    def adopt(self, lease: Lease, old_token: bytes, ttl_ms: int, fence: int | None = None) -> Command:
        """The command that puts the token of ``lease`` in the place of ``old_token``.

        Args:
            lease: The new lease.
            old_token: The token of the exporter's lease.
            ttl_ms: The time-to-live in milliseconds.
            fence: The fence in the text, which the server checks; None if the lock has none.
        """
        ...

    def parse_adopt(self, reply: Reply) -> LossReason | None:
        """None where the lease was taken over, else why it could not be."""
        ...
