"""What a semaphore's object is without waiting."""

from __future__ import annotations

from collections.abc import Callable

from wheel_lock.handle import LockHandle
from wheel_lock.locks import Permit
from wheel_lock.locks.replies import count as read_count
from wheel_lock.options import count, lock_name
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Call


class SemaphoreHandle(LockHandle):
    """A permit, and the number of all of them."""

    __slots__ = ()

    @property
    def permits(self) -> int:
        """How many permits there are as far as this object is concerned, where nobody has set another number."""
        assert isinstance(self._kind, Permit)
        return self._kind.permits

    def _setting(self, permits: int | None) -> tuple[Call, Callable[[Reply], bool]]:
        """Return the command that sets the number, and what its reply means."""
        assert isinstance(self._kind, Permit)
        if permits is not None:
            count("permits", permits, least=1)
        return self._kind.set_permits(lock_name(self.name), permits), lambda reply: read_count(reply) == 1
