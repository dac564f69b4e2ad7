"""Semaphores, without the waiting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from wheel_lock.engine.future import Future
from wheel_lock.errors import LockAlreadyHeld, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types import Permit
from wheel_lock.lock_types.replies import count as read_count
from wheel_lock.locks.base import BaseLock
from wheel_lock.options import count


class BaseSemaphore(BaseLock):
    """A lock object for permits."""

    __slots__ = ()

    _lock_type: Permit

    @property
    def permits(self) -> int:
        """The number of permits that this object was made with; ``set_permits`` at the server takes precedence."""
        return self._lock_type.permits

    def _keep(self, lease: Lease) -> None:
        old = self._lease
        if old is not None and not self._options.thread_local and self._is_valid(old):
            # Another thread was granted a permit through this object at the same time, and the two have no owners.
            raise LockAlreadyHeld(f"A permit of {quoted(self.name)} is held already through this object", self.name)
        super()._keep(lease)

    def _setting(self, permits: int | None) -> Callable[[Future[bool]], object]:
        """Return the request that sets the number, to be run on the timer's thread."""
        if permits is not None:
            count("permits", permits, least=1)
        call = self._lock_type.set_permits(self._encoded_name(), permits)
        return partial(self._engine.query, self.name, call, lambda reply: read_count(reply) == 1)
