"""redis-py's Lock, renewed: for threads."""

from __future__ import annotations

from typing import Any, Literal

import redis.lock
from redis.exceptions import RedisError

from wheel_lock.redis_lock.base import Grant, Renewed, redis_pys_errors
from wheel_lock.runtime.interruptions import insist, uninterrupted_copy, uninterrupted_start
from wheel_lock.runtime.timer_threads import check_may_wait
from wheel_lock.runtime.tokens import new_token
from wheel_lock.sync.call import run
from wheel_lock.sync.lock import Lock as ThreadLock


class ThreadGrant(Grant, ThreadLock):
    """A grant to a thread."""

    __slots__ = ()


class Lock(Renewed, redis.lock.Lock):
    """redis-py's Lock, renewed: ``redis.Redis().lock(name, timeout=30, lock_class=Lock)``.

    Arguments, methods and exceptions are those of :class:`redis.lock.Lock`; docs/guide/redis-py.md lists what differs.
    With a timeout (of 0.2 s or more) it is renewed every third of that; without, it does not expire and is not renewed.
    """

    _for_asyncio = False
    _redis_pys = redis.lock.Lock
    _grant_class = ThreadGrant

    def acquire(
        self, sleep: Any = None, blocking: bool | None = None, blocking_timeout: Any = None, token: Any = None
    ) -> bool:
        """Acquire the lock; return True if it was granted.

        Args:
            sleep: Seconds after which a waiter without a wake-up tries again.
            blocking: True to wait while another owner holds it.
            blocking_timeout: Longest wait in seconds.
            token: The owner's value to store; by default 128 fresh random bits.

        Raises:
            LockAlreadyHeld: This thread holds it already, and would wait for its own release without limit.
        """
        sleep = self.sleep if sleep is None else sleep
        wait = self._wait_limit(blocking, blocking_timeout)
        if self.polls:
            token = new_token() if token is None else token
            return bool(super().acquire(sleep, blocking, blocking_timeout, token))
        return run(self._attempt(sleep, wait, token))

    @uninterrupted_start
    def release(self) -> None:
        """Release the lock; after an interruption (KeyboardInterrupt, say) all the same, without waiting."""
        token = None
        try:
            token = self.local.token
            super().release()
        except RedisError:
            raise
        except BaseException:
            insist(self._let_go, token)
            raise

    # redis-py's own, but for the interruption at its start.
    __exit__: Any = uninterrupted_copy(redis.lock.Lock.__exit__)

    def _let_go(self, token: Any) -> None:
        """Complete an interrupted release without waiting. ``token`` is None if the release had not begun."""
        token = self.local.token if token is None else token
        grant = None if token is None else self._own(token)
        if grant is not None:
            grant.give_back()
            self._kept.pop(grant, None)
        if self.local.token == token:  # and not yet that of the next grant through this object
            self.local.token = None

    def do_acquire(self, token: Any) -> bool:
        """Try once, with a token of the caller's choice."""
        return run(self._attempt(self.sleep, (False, None), token))

    def do_release(self, expected_token: Any) -> None:
        """Release the lease of a token."""
        grant = self._to_use("release", expected_token)
        with redis_pys_errors("release", self.name):
            if grant is not None:
                grant.release()
            else:
                grant = self._find(expected_token)
                if grant is not None:
                    run(grant.let_go())
                check_may_wait()
                super().do_release(expected_token)
        self._kept.pop(grant, None)

    def do_extend(self, additional_time: Any, replace_ttl: bool) -> Literal[True]:
        """Change the time-to-live of the calling thread's lease."""
        extended = run(self._extend("extend", additional_time, replace_ttl))
        return extended or super().do_extend(additional_time, replace_ttl)

    def do_reacquire(self) -> Literal[True]:
        """Set the time-to-live of the calling thread's lease back to the timeout."""
        return run(self._extend("reacquire")) or super().do_reacquire()
