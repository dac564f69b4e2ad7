"""What the engine must know of a kind of lock: its scripts, and what their replies mean. See ``locks/``."""

from __future__ import annotations

from typing import Protocol

from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Call, Script

NO_GRANT = -1
NO_FENCE = 0


class Kind(Protocol):
    """One kind of lock, stateless.

    Attributes:
        arguments: How many arguments of the batched scripts a lease's fragment holds.
        renew: Batched renewal; replies with its exceptions.
        acquire_many: Batched acquire, None where the kind has none.
        release_many: Batched release.
    """

    arguments: int
    renew: Script
    acquire_many: Script | None
    release_many: Script

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool) -> Call:
        """The command that acquires; ``again`` where an earlier try's outcome is not known."""
        ...

    def read_acquire(self, reply: Reply, *, again: bool) -> int | str:
        """NO_GRANT, the fence of the grant (NO_FENCE where there is none), or the server's error text."""
        ...

    def release(self, lease: Lease) -> Call:
        """The command that releases."""
        ...

    def read_release(self, reply: Reply) -> LossReason | None:
        """None where it was released, else why there was nothing to release."""
        ...

    def extend(self, lease: Lease, time_ms: int, *, replace: bool) -> Call:
        """The command that changes the time-to-live."""
        ...

    def read_extend(self, reply: Reply) -> int | LossReason:
        """The new time-to-live in milliseconds, or why there is none."""
        ...
