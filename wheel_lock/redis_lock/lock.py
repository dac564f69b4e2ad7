"""redis-py's locks, renewed: what both have in common, without the waiting; that for threads, and that for asyncio."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Literal

import redis.asyncio
import redis.asyncio.lock
import redis.lock
from redis import exceptions

from wheel_lock import valkey_clients
from wheel_lock.aio import call as aio_call
from wheel_lock.aio import lock as aio_lock
from wheel_lock.context import LockContext
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, noop
from wheel_lock.errors import (
    LockAlreadyHeld,
    LockLost,
    LockNotHeld,
    LockServerError,
    LockTimeout,
    LockUnavailable,
    LossReason,
    quoted,
)
from wheel_lock.lease import Lease, Owner, State
from wheel_lock.lock_types import EVERLASTING, EXCLUSIVE
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.exclusive import CALLER_TOKEN, EVERLASTING_CALLER_TOKEN
from wheel_lock.locks import operations
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.operations import Steps, ask
from wheel_lock.options import MAX_SECONDS, LockOptions, lock_options
from wheel_lock.runtime.interruptions import insist, uninterrupted_copy, uninterrupted_start
from wheel_lock.runtime.timer_threads import check_may_wait
from wheel_lock.runtime.tokens import new_token
from wheel_lock.sync import call as sync_call
from wheel_lock.sync import lock as sync_lock

RENEWED_FROM_S = 0.2  # a shorter timeout ends within 20 ticks: such a lock is meant to expire
_SHORTEST_SLEEP_S = 0.01
_CONNECTION_ERRORS = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.BusyLoadingError)
_SERVER_ERRORS: dict[str, type[exceptions.ResponseError]] = {
    "READONLY": exceptions.ReadOnlyError,
    "NOPERM": exceptions.NoPermissionError,
    "OOM": exceptions.OutOfMemoryError,
}
_RETRY_S = 0.01

# After these losses the engine does nothing more about the key, but it may still exist, with our token.
_KEY_MAY_EXIST = (LossReason.ABANDONED, LossReason.CONTEXT_CLOSED, LossReason.THREAD_DIED, LossReason.INTERNAL_ERROR)


class Grant(BaseLock):
    """One granted lease, behind a token. Any caller with that may change it, as in redis-py.

    A redis-py lock keeps the token only, so every acquire makes one of these, which the lock object keeps alive: when that
    is dropped the grant is, and with it the renewals.
    """

    __slots__ = ()

    _wrong_owner: ClassVar[str | None] = None

    def _disown(self, leases: Sequence[Lease] | None) -> None:
        """Keep the lease all the same: it shows the fate of the token."""

    @property
    def lease(self) -> Lease:
        """The lease."""
        assert self._lease is not None
        return self._lease

    @property
    def everlasting(self) -> bool:
        """True if the key never expires."""
        return self._lock_type in (EVERLASTING, EVERLASTING_CALLER_TOKEN)

    @property
    def given_up(self) -> bool:
        """True if the engine has given up the lease, and the key may still exist: only the server can tell."""
        lease = self.lease
        return lease.state in (State.RELEASED, State.EXPORTED) or lease.loss in _KEY_MAY_EXIST

    def let_go(self) -> Steps[None]:
        """End the renewals, before a release by redis-py's own script."""
        return ask(self, partial(self._engine.export, self._to_change("release")))

    def leave_alone(self) -> None:
        """End the renewals without releasing the lock. Does not wait."""
        self._engine.post_if_open(partial(self._engine.export, self.lease, Future(noop)))

    def give_back(self) -> None:
        """Release the lock, if it was granted at all. Does not wait."""
        if self._lease is not None:
            self._engine.post_if_open(partial(self._engine.release_many, [self._lease], Future(noop)))


GRANTS: weakref.WeakValueDictionary[tuple[int, bytes], Grant] = weakref.WeakValueDictionary()
"""The latest grant of each name in each engine of this process. It goes with its lock object."""


class _Local:
    """A token for each thread or greenlet; None where redis-py's has no such attribute."""

    def __init__(self) -> None:
        self._tokens: weakref.WeakKeyDictionary[Owner, Any] = weakref.WeakKeyDictionary()

    @property
    def token(self) -> Any:
        """The token of the caller."""
        return self._tokens.get(sync_call.current_owner())

    @token.setter
    def token(self, token: Any) -> None:
        self._tokens[sync_call.current_owner()] = token


class Renewed:
    """A renewed lock, for threads or for asyncio."""

    polls: ClassVar[bool] = False
    """True to wait as redis-py does: try, sleep, try again. For subclasses, and for tests that patch its clock."""

    _for_asyncio: ClassVar[bool]
    _redis_pys: ClassVar[Any]
    _grant_class: ClassVar[type[Grant]]

    # redis-py's
    redis: Any
    name: Any
    timeout: Any
    sleep: Any
    blocking: bool
    blocking_timeout: Any
    thread_local: bool
    local: Any
    lua_release: Any
    lua_extend: Any
    lua_reacquire: Any

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._kept: dict[Grant, None] = {}
        if self.thread_local:
            self.local = _Local()

    def register_scripts(self) -> None:
        """Register redis-py's scripts. Raises TypeError for an unsuitable client, before the class gets its scripts."""
        kind = valkey_clients.kind_of(self.redis)
        if (kind is not None and kind.for_asyncio) is not self._for_asyncio:
            wanted = "an asyncio" if self._for_asyncio else "a synchronous"
            raise TypeError(
                f"{type(self).__name__} is for {wanted} client, not for a {type(self.redis).__module__} one"
            )
        LockContext.shared(self.redis)
        if kind is not None and kind.package == "valkey":
            for verb in ("release", "extend", "reacquire"):  # the scripts of the class are for redis-py's clients
                setattr(self, f"lua_{verb}", self.redis.register_script(getattr(self, f"LUA_{verb.upper()}_SCRIPT")))
            return
        self._redis_pys.register_scripts(self)
        for script in (self.lua_release, self.lua_extend, self.lua_reacquire):
            # The scripts belong to the class, and would keep its first client alive. A call without a client of its own
            # uses that of the latest lock.
            registered = getattr(script, "registered_client", None)
            if registered is self.redis or type(registered) in weakref.ProxyTypes:
                script.registered_client = weakref.proxy(self.redis)

    @property
    def _engine(self) -> Engine:
        return LockContext.shared(self.redis)._engine  # not kept: a shared context that was closed is made anew

    def _encoded(self, value: Any) -> bytes:
        return bytes(valkey_clients.encoder_of(self.redis).encode(value))

    def _key(self) -> bytes:
        """Return the name as redis-py sends it, so that its own locks contend for the same key."""
        return valkey_clients.key_as_sent(self.redis, self.name)

    def _readable_name(self) -> str | bytes:
        """Return the name as shown in logs: text, if it is valid UTF-8."""
        key = self._key()
        try:
            return key.decode()
        except UnicodeDecodeError:
            return key

    def _terms(self, sleep: Any, token_given: bool, limit_s: float | None) -> tuple[LockType, LockOptions]:
        timeout = _as_float(self.timeout or MAX_SECONDS)
        renew = bool(self.timeout) and timeout >= RENEWED_FROM_S
        if sleep is None or not _as_float(sleep) >= 0:
            raise ValueError(f"sleep must be a number of seconds, at least 0, not {sleep!r:.80}")
        fallback = min(max(_as_float(sleep), _SHORTEST_SLEEP_S), MAX_SECONDS)
        # As in redis-py: a wait that is shorter than one sleep is not begun.
        once = 1 if limit_s is not None and sleep > limit_s else None
        options = lock_options(
            timeout, renew=renew, fallback=fallback, max_attempts=once, thread_local=self.thread_local
        )
        if token_given:
            return CALLER_TOKEN if self.timeout else EVERLASTING_CALLER_TOKEN, options
        return EXCLUSIVE if self.timeout else EVERLASTING, options

    def _wait_limit(self, blocking: bool | None, blocking_timeout: Any) -> tuple[bool, float | None]:
        """Return True if an acquire waits, and its time limit in seconds, None if it has none."""
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        if not (self.blocking if blocking is None else blocking):
            return False, None
        if blocking_timeout is None or blocking_timeout > MAX_SECONDS:
            return True, None
        return True, max(_as_float(blocking_timeout), 0.0)

    def _attempt(self, sleep: Any, wait: tuple[bool, float | None], token: Any) -> Steps[bool]:
        """Acquire the lock; return True if it was granted."""
        engine, (lock_type, options) = self._engine, self._terms(sleep, token is not None, wait[1])
        grant = self._grant_class(engine, lock_type, self._readable_name(), options, None)
        try:
            with redis_pys_errors("acquire", self.name):
                secret = None if token is None else self._encoded(token)
                if not (yield from operations.acquire(grant, *wait, secret)):
                    return False
            self.local.token = self._keep(grant, engine)
            return True
        except BaseException:
            grant.give_back()  # after the grant, too: an interruption must not leave a key that may never expire
            raise

    def _keep(self, grant: Grant, engine: Engine) -> bytes:
        """Keep a new grant, and drop those that have ended; return its token."""
        for kept in self._kept.copy():  # several threads may be here at once
            if kept.everlasting and kept.lease.key == grant.lease.key:
                kept.leave_alone()  # its key was deleted: no renewal would ever find that
                self._kept.pop(kept, None)
            elif not kept.is_held:
                self._kept.pop(kept, None)
        self._kept[grant] = None
        GRANTS[id(engine), grant.lease.key] = grant
        return grant.lease.token

    def _own(self, token: Any) -> Grant | None:
        """Return the grant that was acquired with this token through this object, or None."""
        secret = self._encoded(token)
        return next((grant for grant in reversed(self._kept.copy()) if grant.lease.token == secret), None)

    def _find(self, token: Any) -> Any:
        """Return the grant of this process with this token, or None if there is none or the engine has given it up."""
        grant = self._own(token) or GRANTS.get((id(self._engine), self._key()))  # of any object of this process
        if grant is None or grant.lease.token != self._encoded(token):
            return None
        return None if grant.given_up else grant

    def _to_use(self, verb: str, token: Any) -> Any:
        """Return the grant to use; None if redis-py's own way applies: for unknown tokens, and with replaced scripts."""
        grant = self._find(token)
        script, text = getattr(self, f"lua_{verb}"), getattr(self._redis_pys, f"LUA_{verb.upper()}_SCRIPT")
        if grant is not None and getattr(script, "script", None) != text:
            with redis_pys_errors(verb, self.name):
                grant.raise_if_lost()
            return None
        return grant

    def _of_release(self, token: Any) -> tuple[Any, Grant | None]:
        """Return what an interrupted release is to release without waiting. ``token`` is None if it had not begun."""
        token = self.local.token if token is None else token
        return token, None if token is None else self._own(token)

    def _drop(self, token: Any) -> None:
        if self.local.token == token:  # and not yet that of the next grant through this object
            self.local.token = None

    def _extend(self, verb: str, additional_time: Any = None, replace_ttl: bool = True) -> Steps[bool]:
        """Extend the caller's lease, or reacquire it; return False if redis-py's own way applies."""
        grant = self._to_use(verb, self.local.token)
        if grant is None or grant.everlasting:
            return False
        with redis_pys_errors(verb, self.name):
            time_s = _as_float(self.timeout if verb == "reacquire" else additional_time)
            if time_s == 0 and not replace_ttl:
                time_s = 0.001  # redis-py allows to add nothing
            return (yield from operations.extend(grant, time_s, replace_ttl))


def _as_float(value: Any) -> float:
    """Return a time of any numeric type as a float: redis-py accepts all types that can be multiplied."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@contextmanager
def redis_pys_errors(verb: str, name: Any) -> Iterator[None]:
    """Turn our errors into redis-py's, where a connection failure is no LockError, unlike a refusal."""
    try:
        yield
    except (LockLost, LockNotHeld) as error:
        raise exceptions.LockNotOwnedError(f"Cannot {verb} a lock that's no longer owned", lock_name=name) from error
    except LockTimeout as error:
        raise exceptions.TimeoutError(str(error)) from error
    except LockUnavailable as error:
        lock_type = type(error.__cause__)
        raise (lock_type if lock_type in _CONNECTION_ERRORS else exceptions.ConnectionError)(str(error)) from error
    except LockServerError as error:
        raise _SERVER_ERRORS.get(error.code, exceptions.ResponseError)(str(error)) from error


class ThreadGrant(Grant, sync_lock.Lock):
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
        return sync_call.run(self._attempt(sleep, wait, token))

    @uninterrupted_start
    def release(self) -> None:
        """Release the lock; after an interruption (KeyboardInterrupt, say) all the same, without waiting."""
        token = None
        try:
            token = self.local.token
            super().release()
        except exceptions.RedisError:
            raise
        except BaseException:
            insist(self._let_go, token)
            raise

    # redis-py's own, but for the interruption at its start.
    __exit__: Any = uninterrupted_copy(redis.lock.Lock.__exit__)

    def _let_go(self, token: Any) -> None:
        token, grant = self._of_release(token)
        if grant is not None:
            grant.give_back()
            self._kept.pop(grant, None)
        self._drop(token)

    def do_acquire(self, token: Any) -> bool:
        """Try once, with a token of the caller's choice."""
        return sync_call.run(self._attempt(self.sleep, (False, None), token))

    def do_release(self, expected_token: Any) -> None:
        """Release the lease of a token."""
        grant = self._to_use("release", expected_token)
        with redis_pys_errors("release", self.name):
            if grant is not None:
                grant.release()
            else:
                grant = self._find(expected_token)
                if grant is not None:
                    sync_call.run(grant.let_go())
                check_may_wait()
                super().do_release(expected_token)
        self._kept.pop(grant, None)

    def do_extend(self, additional_time: Any, replace_ttl: bool) -> Literal[True]:
        """Change the time-to-live of the calling thread's lease."""
        extended = sync_call.run(self._extend("extend", additional_time, replace_ttl))
        return extended or super().do_extend(additional_time, replace_ttl)

    def do_reacquire(self) -> Literal[True]:
        """Set the time-to-live of the calling thread's lease back to the timeout."""
        return sync_call.run(self._extend("reacquire")) or super().do_reacquire()


class AsyncGrant(Grant, aio_lock.Lock):
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
            await aio_call.run(self._refuse_endless())
        if self.polls:
            token = new_token() if token is None else token
            return bool(await super().acquire(blocking, blocking_timeout, token))
        return await aio_call.run(self._attempt(self.sleep, wait, token))

    def _refuse_endless(self) -> Steps[None]:
        """Raise LockAlreadyHeld if the task holds the lock through this very object, whose token the wait would replace."""
        for grant in self._kept.copy():
            if grant.lease.owner is aio_call.current_owner() and grant.is_held and grant.timeout >= RENEWED_FROM_S:
                with redis_pys_errors("acquire", self.name):
                    if (yield from operations.owned(grant)):
                        raise LockAlreadyHeld(
                            f"The lock {quoted(self.name)} is held by this very task, which would wait for ever (see "
                            "thread_local)",
                            self.name,
                        )

    async def do_acquire(self, token: Any) -> bool:
        """Try once, with a token of the caller's choice."""
        return await aio_call.run(self._attempt(self.sleep, (False, None), token))

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
        token, grant = self._of_release(token)
        if isinstance(grant, AsyncGrant):
            grant.unanswered = True
            grant.give_back()

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
                await aio_call.run(grant.let_go())
            try:
                await super().do_release(expected_token)
            except exceptions.LockNotOwnedError:
                if not isinstance(own, AsyncGrant) or not own.unanswered:
                    raise  # otherwise the cancelled release has deleted the key
        if own is not None:
            self._kept.pop(own, None)

    async def do_extend(self, additional_time: Any, replace_ttl: bool) -> Literal[True]:
        """Change the time-to-live of the lease."""
        extended = await aio_call.run(self._extend("extend", additional_time, replace_ttl))
        return extended or await super().do_extend(additional_time, replace_ttl)

    async def do_reacquire(self) -> Literal[True]:
        """Set the time-to-live of the lease back to the timeout."""
        return await aio_call.run(self._extend("reacquire")) or await super().do_reacquire()
