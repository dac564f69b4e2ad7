"""The methods of a context that make lock objects for tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypedDict, Unpack

from wheel_lock.aio.leader import Leader, Leadership
from wheel_lock.aio.lock import Lock
from wheel_lock.aio.primitives import MultiLock, ReadWriteLock, ReentrantLock, Semaphore
from wheel_lock.engine.engine import Engine
from wheel_lock.locks.factory import (
    FAIR_TYPES,
    REENTRANT_TYPES,
    FencedTerms,
    LockFactory,
    LockTerms,
    OwnedTerms,
    permit_types,
    spelled_out,
)


class _CancelTerms(TypedDict, total=False):
    cancel_on_lost: bool


class TaskFencedTerms(FencedTerms, _CancelTerms, total=False):
    """The terms of a reentrant lock for tasks; :meth:`AsyncContext.lock` documents ``cancel_on_lost``."""


class TaskOwnedTerms(OwnedTerms, _CancelTerms, total=False):
    """The terms of a semaphore for tasks."""


class TaskLockTerms(LockTerms, _CancelTerms, total=False):
    """All terms of a lock for tasks."""


class TaskLocks(LockFactory):
    """The base class of contexts that make locks for tasks."""

    _engine: Engine
    _takes_coroutines = True

    @spelled_out(TaskFencedTerms)
    def reentrant_lock(
        self, name: str | bytes, timeout: float | None = None, **terms: Unpack[TaskFencedTerms]
    ) -> ReentrantLock:
        """Return a lock that the task which holds it may acquire again; see :meth:`LockContext.reentrant_lock`.

        ``cancel_on_lost`` is that of :meth:`AsyncContext.lock`. The lock always belongs to the task that acquires it.
        """
        return self._new(ReentrantLock, REENTRANT_TYPES, name, timeout, terms)

    @spelled_out(FencedTerms)
    def rw_lock(self, name: str | bytes, timeout: float | None = None, **terms: Unpack[FencedTerms]) -> ReadWriteLock:
        """Return a read-write lock; see :meth:`LockContext.rw_lock`. It always belongs to the task that acquires it."""
        return ReadWriteLock(self._engine, name, *self._checked(timeout, terms, name))

    @spelled_out(TaskLockTerms)
    def fair_lock(self, name: str | bytes, timeout: float | None = None, **terms: Unpack[TaskLockTerms]) -> Lock:
        """Return an exclusive lock that is granted in the order of arrival; see :meth:`LockContext.fair_lock`."""
        return self._new(Lock, FAIR_TYPES, name, timeout, terms)

    @spelled_out(TaskOwnedTerms)
    def semaphore(
        self, name: str | bytes, permits: int, timeout: float | None = None, **terms: Unpack[TaskOwnedTerms]
    ) -> Semaphore:
        """Return a semaphore, of which each task holds a permit of its own; see :meth:`LockContext.semaphore`."""
        return self._new(Semaphore, permit_types(permits), name, timeout, terms)

    @spelled_out(OwnedTerms)
    def multi_lock(
        self, names: Iterable[str | bytes], timeout: float | None = None, **terms: Unpack[OwnedTerms]
    ) -> MultiLock:
        """Return several exclusive locks as one; see :meth:`LockContext.multi_lock`."""
        return MultiLock(self._engine, names, *self._checked(timeout, terms))

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
