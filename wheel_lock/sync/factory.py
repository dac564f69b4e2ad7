"""The methods of a context that make lock objects for threads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from wheel_lock.engine.engine import Engine
from wheel_lock.lock_types import FAIR, FENCED_FAIR, FENCED_REENTRANT, REENTRANT
from wheel_lock.locks.base import OnLost, checked_callback
from wheel_lock.locks.factory import allowed_options, semaphore_of
from wheel_lock.options import LockTerms, OwnedTerms, SharedTerms, lock_name
from wheel_lock.sync import primitives as sync_primitives
from wheel_lock.sync.lock import Lock as ThreadLock


class ThreadLocks:
    """Makes locks for threads."""

    _engine: Engine

    def reentrant_lock(
        self, name: str | bytes, timeout: float = 30.0, *, on_lost: OnLost | None = None, **terms: Unpack[OwnedTerms]
    ) -> sync_primitives.ReentrantLock:
        """Return a lock that the thread which holds it may acquire again, not yet acquired.

        On the server it is what Redisson's RLock is, so services in Java and in Python exclude each other on one name.

        Args:
            name, timeout, on_lost, terms: As for :meth:`lock`. It always belongs to the thread that acquires it.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        lock_name(name)
        options = allowed_options("reentrant_lock", OwnedTerms, timeout, dict(terms))
        lock_type = FENCED_REENTRANT if options.fencing else REENTRANT
        return sync_primitives.ReentrantLock(self._engine, lock_type, name, options, checked_callback(on_lost))

    def rw_lock(
        self, name: str | bytes, timeout: float = 30.0, *, on_lost: OnLost | None = None, **terms: Unpack[OwnedTerms]
    ) -> sync_primitives.ReadWriteLock:
        """Return a read-write lock: ``.read()`` and ``.write()`` are its two halves, not yet acquired.

        Any number of readers hold it together, or one writer alone. Both halves can be acquired again by the thread that
        holds them; who writes may acquire it for reading, too, and goes on reading when it has released it for writing
        (or with ``downgrade()``); who reads must not acquire it for writing.

        Args:
            name, timeout, on_lost, terms: As for :meth:`lock`; a fence is drawn by writers only. It always belongs to the
                thread that acquires it.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        lock_name(name)
        options = allowed_options("rw_lock", OwnedTerms, timeout, dict(terms))
        return sync_primitives.ReadWriteLock(self._engine, name, options, checked_callback(on_lost))

    def fair_lock(
        self, name: str | bytes, timeout: float = 30.0, *, on_lost: OnLost | None = None, **terms: Unpack[LockTerms]
    ) -> ThreadLock:
        """Return an exclusive lock that is granted in the order of arrival, across processes; not yet acquired.

        A waiter that has died is skipped when it has not been heard of for ``fallback_interval`` (or the timeout, if
        that is shorter) by the server's clock. One whose process stood still for longer loses its place.

        Args:
            name, timeout, on_lost, terms: As for :meth:`lock`.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        lock_name(name)
        options = allowed_options("fair_lock", LockTerms, timeout, dict(terms))
        lock_type = FENCED_FAIR if options.fencing else FAIR
        return ThreadLock(self._engine, lock_type, name, options, checked_callback(on_lost))

    def semaphore(
        self,
        name: str | bytes,
        permits: int,
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        **terms: Unpack[SharedTerms],
    ) -> sync_primitives.Semaphore:
        """Return a semaphore: at most ``permits`` hold it at once, each with a lease of its own that is renewed.

        One object holds one permit per thread; another object, or another thread, holds another one. Only the thread that
        acquired a permit may release it, unless ``thread_local=False``: then there is one for all threads, and any may.

        Args:
            name: Its name.
            permits: How many permits there are, unless somebody has set another number with ``set_permits``.
            timeout, on_lost, terms: As for :meth:`lock`; there are no fences.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        lock_type, options = semaphore_of(name, permits, timeout, dict(terms))
        return sync_primitives.Semaphore(self._engine, lock_type, name, options, checked_callback(on_lost))

    def multi_lock(
        self,
        names: Iterable[str | bytes],
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        **terms: Unpack[SharedTerms],
    ) -> sync_primitives.MultiLock:
        """Return several exclusive locks as one: all of them are acquired at once, or none is.

        Nothing is held while it waits, so overlapping sets cannot wait for each other for ever. Each lock is an ordinary
        one with a lease of its own, and excludes ``lock(name)``.

        Args:
            names: Their names, at least one; one that is given twice counts once.
            timeout, terms: As for :meth:`lock`; there are no fences.
            on_lost: Called once for each of them that is lost.

        Raises:
            ValueError: A name or a value is out of range; before any I/O.
        """
        options = allowed_options("multi_lock", SharedTerms, timeout, dict(terms))
        return sync_primitives.MultiLock(self._engine, names, options, checked_callback(on_lost))
