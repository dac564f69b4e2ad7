"""redis-py's Lock, renewed: for asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import redis.asyncio.lock
from redis import exceptions

from wheel_lock.aio.call import current_owner, run
from wheel_lock.aio.lock import Lock as TaskLock
from wheel_lock.errors import LockAlreadyHeld, LockNotHeld, quoted
from wheel_lock.locks import operations
from wheel_lock.locks.operations import Steps
from wheel_lock.redis_lock.base import RENEWED_FROM_S, Grant, Renewed, redis_pys_errors
from wheel_lock.runtime.interruptions import insist, uninterrupted_copy, uninterrupted_start
from wheel_lock.runtime.tokens import new_token

_RETRY_S = 0.01


class AsyncGrant(Grant, TaskLock):
    """A grant to a task.

    Attributes:
        unanswered: True if its release was begun, and was cancelled or failed: it has been carried out, or will be.
    """

    __slots__ = ("unanswered",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unanswered: bool = False

    async def release(self) -> bool:
        """Release the grant."""
        self.unanswered = True
        released = await super().release()
        self.unanswered = False
        return released


class AsyncLock(Renewed, redis.asyncio.lock.Lock):
    """:class:`Lock` for asyncio: ``redis.asyncio.Redis().lock(name, timeout=30, lock_class=AsyncLock)``."""

    _for_asyncio = True
    _redis_pys = redis.asyncio.lock.Lock
    _grant_class = AsyncGrant

    async def acquire(self, blocking: bool | None = None, blocking_timeout: Any = None, token: Any = None) -> bool:
        """Acquire the lock; see :meth:`Lock.acquire`. A task that is cancelled meanwhile leaves no grant."""
        wait = self._wait_limit(blocking, blocking_timeout)
        if wait == (True, None):
            await run(self._refuse_endless())
        if self.polls:
            token = new_token() if token is None else token
            return bool(await super().acquire(blocking, blocking_timeout, token))
        return await run(self._attempt(self.sleep, wait, token))

    def _refuse_endless(self) -> Steps[None]:
        """Raise LockAlreadyHeld if the task holds the lock through this very object, whose token the wait would replace."""
        for grant in self._kept.copy():
            if grant.lease.owner is current_owner() and grant.is_held and grant.timeout >= RENEWED_FROM_S:
                with redis_pys_errors("acquire", self.name):
                    if (yield from operations.owned(grant)):
                        raise LockAlreadyHeld(
                            f"The lock {quoted(self.name)} is held by this very task, which would wait for ever (see "
                            "thread_local)",
                            self.name,
                        )

    async def do_acquire(self, token: Any) -> bool:
        """Try once, with a token of the caller's choice."""
        return await run(self._attempt(self.sleep, (False, None), token))

    @uninterrupted_start
    async def release(self) -> None:
        """Release the lock. The token is kept until then, so a cancelled release can be repeated."""
        token = None
        try:
            token = self.local.token
            if token is None:
                raise exceptions.LockError("Cannot release a lock that's not owned or is already unlocked.", self.name)
            await self.do_release(token)
        except exceptions.LockNotOwnedError:
            self._drop(token)
            raise
        except exceptions.RedisError:
            raise
        except BaseException:
            insist(self._let_go, token)
            raise
        self._drop(token)

    # redis-py's own, but for the interruption at its start.
    __aexit__: Any = uninterrupted_copy(redis.asyncio.lock.Lock.__aexit__)

    def _let_go(self, token: Any) -> None:
        """Complete an interrupted release without waiting. ``token`` is None if the release had not begun."""
        token = self.local.token if token is None else token
        grant = None if token is None else self._own(token)
        if isinstance(grant, AsyncGrant):
            grant.unanswered = True
            grant.give_back()

    def _drop(self, token: Any) -> None:
        if self.local.token == token:  # and not yet that of the next grant through this object
            self.local.token = None

    async def do_release(self, expected_token: Any) -> None:
        """Release the lease of a token. A cancelled task's release is carried out all the same."""
        while (grant := self._to_use("release", expected_token)) is not None:
            with redis_pys_errors("release", self.name):
                try:
                    await grant.release()
                except LockNotHeld:
                    await asyncio.sleep(_RETRY_S)  # a cancelled release is in progress
                else:
                    self._kept.pop(grant, None)
                    return
        own = self._own(expected_token)
        with redis_pys_errors("release", self.name):
            grant = self._find(expected_token)
            if grant is not None:
                await run(grant.let_go())
            try:
                await super().do_release(expected_token)
            except exceptions.LockNotOwnedError:
                if not isinstance(own, AsyncGrant) or not own.unanswered:
                    raise  # otherwise the cancelled release has deleted the key
        if own is not None:
            self._kept.pop(own, None)

    async def do_extend(self, additional_time: Any, replace_ttl: bool) -> Literal[True]:
        """Change the time-to-live of the lease."""
        extended = await run(self._extend("extend", additional_time, replace_ttl))
        return extended or await super().do_extend(additional_time, replace_ttl)

    async def do_reacquire(self) -> Literal[True]:
        """Set the time-to-live of the lease back to the timeout."""
        return await run(self._extend("reacquire")) or await super().do_reacquire()
