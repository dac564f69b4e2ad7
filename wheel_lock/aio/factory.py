"""The methods of a context that make lock objects for tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from wheel_lock.aio import primitives as aio_primitives
from wheel_lock.aio.lock import Lock as TaskLock
from wheel_lock.aio.lock import task_callback
from wheel_lock.engine.engine import Engine
from wheel_lock.lock_types import FAIR, FENCED_FAIR, FENCED_REENTRANT, REENTRANT
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.factory import allowed_options, semaphore_of
from wheel_lock.options import LockTerms, OwnedTerms, SharedTerms, lock_name


class TaskLocks:
    """Makes locks for tasks."""

    _engine: Engine

    def reentrant_lock(
        self,
        name: str | bytes,
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **terms: Unpack[OwnedTerms],
    ) -> aio_primitives.ReentrantLock:
        """Return a lock that the task which holds it may acquire again; see :meth:`LockContext.reentrant_lock`.

        Args:
            name, timeout, on_lost, terms: As there. It always belongs to the task that acquires it.
            cancel_on_lost: As for :meth:`AsyncContext.lock`.
        """
        lock_name(name)
        options = allowed_options("reentrant_lock", OwnedTerms, timeout, dict(terms))
        lock_type = FENCED_REENTRANT if options.fencing else REENTRANT
        callback = task_callback(on_lost)
        return aio_primitives.ReentrantLock(
            self._engine, lock_type, name, options, callback, cancel_on_lost=cancel_on_lost
        )

    def rw_lock(
        self, name: str | bytes, timeout: float = 30.0, *, on_lost: OnLost | None = None, **terms: Unpack[OwnedTerms]
    ) -> aio_primitives.ReadWriteLock:
        """Return a read-write lock; see :meth:`LockContext.rw_lock`. It always belongs to the task that acquires it."""
        lock_name(name)
        options = allowed_options("rw_lock", OwnedTerms, timeout, dict(terms))
        return aio_primitives.ReadWriteLock(self._engine, name, options, task_callback(on_lost))

    def fair_lock(
        self,
        name: str | bytes,
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **terms: Unpack[LockTerms],
    ) -> TaskLock:
        """Return an exclusive lock that is granted in the order of arrival; see :meth:`LockContext.fair_lock`."""
        lock_name(name)
        options = allowed_options("fair_lock", LockTerms, timeout, dict(terms))
        lock_type = FENCED_FAIR if options.fencing else FAIR
        callback = task_callback(on_lost)
        return TaskLock(self._engine, lock_type, name, options, callback, cancel_on_lost=cancel_on_lost)

    def semaphore(
        self,
        name: str | bytes,
        permits: int,
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **terms: Unpack[SharedTerms],
    ) -> aio_primitives.Semaphore:
        """Return a semaphore, of which each task holds a permit of its own; see :meth:`LockContext.semaphore`.

        Only the task that acquired a permit may release it, unless ``thread_local=False``.
        """
        lock_type, options = semaphore_of(name, permits, timeout, dict(terms))
        callback = task_callback(on_lost)
        return aio_primitives.Semaphore(self._engine, lock_type, name, options, callback, cancel_on_lost=cancel_on_lost)

    def multi_lock(
        self,
        names: Iterable[str | bytes],
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        **terms: Unpack[SharedTerms],
    ) -> aio_primitives.MultiLock:
        """Return several exclusive locks as one; see :meth:`LockContext.multi_lock`."""
        options = allowed_options("multi_lock", SharedTerms, timeout, dict(terms))
        return aio_primitives.MultiLock(self._engine, names, options, task_callback(on_lost))
