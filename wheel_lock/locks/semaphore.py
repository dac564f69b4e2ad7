"""What a semaphore's object is without waiting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from wheel_lock.engine.future import Future
from wheel_lock.errors import LockAlreadyHeld, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types import Permit
from wheel_lock.lock_types.replies import count as read_count
from wheel_lock.locks.base import BaseLock
from wheel_lock.options import count, lock_name


class BaseSemaphore(BaseLock):
    """A permit, and the number of all of them."""

    __slots__ = ()

    @property
    def permits(self) -> int:
        """How many permits there are as far as this object is concerned, where nobody has set another number."""
        assert isinstance(self._lock_type, Permit)
        return self._lock_type.permits

    def _keep(self, lease: Lease) -> None:
        old = self._lease
        if old is not None and not self._options.thread_local and self._is_valid(old):
            # Whoever was granted it at the same time has it; nothing here could tell the two apart.
            raise LockAlreadyHeld(f"A permit of {quoted(self.name)} is held already through this object", self.name)
        super()._keep(lease)

    def _setting(self, permits: int | None) -> Callable[[Future[bool]], object]:
        """Return the work that sets the number."""
        assert isinstance(self._lock_type, Permit)
        if permits is not None:
            count("permits", permits, least=1)
        call = self._lock_type.set_permits(lock_name(self.name), permits)
        return partial(self._engine.query, self.name, call, lambda reply: read_count(reply) == 1)
