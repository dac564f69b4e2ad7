"""The methods of a context that make lock objects for tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wheel_lock.aio.leader import Leader, Leadership
from wheel_lock.aio.lock import Lock, task_callback
from wheel_lock.aio.primitives import MultiLock, ReadWriteLock, ReentrantLock, Semaphore
from wheel_lock.engine.engine import Engine
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.factory import named_options, semaphore_of, type_and_options


class TaskLocks:
    """The base class of contexts that make locks for tasks."""

    _engine: Engine

    def reentrant_lock(
        self,
        name: str | bytes,
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        fencing: bool = False,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
    ) -> ReentrantLock:
        """Return a lock that the task which holds it may acquire again; see :meth:`LockContext.reentrant_lock`.

        ``cancel_on_lost`` is that of :meth:`AsyncContext.lock`. The lock always belongs to the task that acquires it.
        """
        lock_type, options = type_and_options(self._engine.options, "reentrant_lock", locals())
        callback = task_callback(on_lost)
        return ReentrantLock(self._engine, lock_type, name, options, callback, cancel_on_lost=cancel_on_lost)

    def rw_lock(
        self,
        name: str | bytes,
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        fencing: bool = False,
        on_lost: OnLost | None = None,
    ) -> ReadWriteLock:
        """Return a read-write lock; see :meth:`LockContext.rw_lock`. It always belongs to the task that acquires it."""
        options = named_options(self._engine.options, locals())
        return ReadWriteLock(self._engine, name, options, task_callback(on_lost))

    def fair_lock(
        self,
        name: str | bytes,
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        fencing: bool = False,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        thread_local: bool = True,
    ) -> Lock:
        """Return an exclusive lock that is granted in the order of arrival; see :meth:`LockContext.fair_lock`."""
        lock_type, options = type_and_options(self._engine.options, "fair_lock", locals())
        callback = task_callback(on_lost)
        return Lock(self._engine, lock_type, name, options, callback, cancel_on_lost=cancel_on_lost)

    def semaphore(
        self,
        name: str | bytes,
        permits: int,
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        thread_local: bool = True,
    ) -> Semaphore:
        """Return a semaphore, of which each task holds a permit of its own; see :meth:`LockContext.semaphore`."""
        lock_type, options = semaphore_of(self._engine.options, locals())
        callback = task_callback(on_lost)
        return Semaphore(self._engine, lock_type, name, options, callback, cancel_on_lost=cancel_on_lost)

    def multi_lock(
        self,
        names: Iterable[str | bytes],
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        on_lost: OnLost | None = None,
        thread_local: bool = True,
    ) -> MultiLock:
        """Return several exclusive locks as one; see :meth:`LockContext.multi_lock`."""
        options = self._engine.options.of_lock(locals())
        return MultiLock(self._engine, names, options, task_callback(on_lost))

    def leader(
        self,
        name: str | bytes,
        timeout: float | None = None,
        *,
        on_elected: Callable[[Leadership], object] | None = None,
        on_demoted: Callable[[Leadership], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        renew_every: float | None = None,
    ) -> Leader:
        """Return a candidate for the leadership of ``name``, not yet started; see :meth:`wheel_lock.LockContext.leader`.

        ``on_elected`` and ``on_demoted`` may be coroutine functions. ``on_elected`` is cancelled when the term ends.
        """
        return Leader(self._engine, self, name, timeout, renew_every, on_elected, on_demoted, on_error)
