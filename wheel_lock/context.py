"""LockContext, the public entry point: it makes locks, and acquires, releases and adopts them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

from wheel_lock.asyncio import AsyncContext
from wheel_lock.decorator import Decorates
from wheel_lock.engine.engine import Engine
from wheel_lock.exclusion import exclusively
from wheel_lock.forks import in_forked_child
from wheel_lock.holder import Holder
from wheel_lock.lock_types import EXCLUSIVE, FENCED
from wheel_lock.locks import operations
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.bulk import Name
from wheel_lock.locks.context import checked_callback, spelled_out
from wheel_lock.net.clients import AnyClient, connector_for, parse
from wheel_lock.observe.contexts import CONTEXTS
from wheel_lock.options import SETTINGS, ContextOptions, lock_name, lock_options
from wheel_lock.quorum.context import QuorumContext, QuorumSettings, SharedSettings
from wheel_lock.runtime.interruptions import uninterrupted_start
from wheel_lock.runtime.native import RLock
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.sync.call import run
from wheel_lock.sync.context import ThreadLocks
from wheel_lock.sync.lock import Lock, MultiLock


class ContextSettings(SharedSettings, total=False):
    """The parameters of :class:`LockContext` except its client."""

    fallback_interval: float
    min_replicas: int
    replica_timeout: float


class LockContext(ThreadLocks, Decorates):
    """Holds locks on one Redis server and keeps them alive from one thread.

    Args:
        client: A ``redis.Redis`` or ``redis.asyncio.Redis`` client, one from ``Sentinel.master_for``, or a ``RedisCluster``
            of either, or the same of valkey-py. The context uses its settings (TCP, unix socket or TLS, credentials,
            database), and connections of its own.
        timer: The timer to use; by default one that all contexts of the process share. The timeout of a renewed lock must
            be a little longer than four of its ticks; a shorter one raises ValueError at the acquire.
        batch_size: Leases per renewal script call.
        response_timeout: Seconds that a call may stay unanswered, reconnecting included, before it raises.
        connect_timeout: Seconds for each step of connecting: TCP, TLS, user and password, and the loading of the scripts.
            Those are up to nine round trips; all together may take four times as long. The time of a credential provider
            does not count; each silent address of the server's name may take the time of one step more.
        close_timeout: Seconds that :meth:`close` may take.
        release_on_close: True to release the held locks at :meth:`close` and at the end of the interpreter, False to let
            them expire.
        max_held: The most locks that may be held at once; None for no bound.
        max_waiting: The most callers that may wait for locks at once; None for no bound.
        declare_keys: True if each call of a script is about one lock and declares its keys, for services that route calls
            by those (some managed Redis offerings, Envoy, twemproxy). A service that refuses other calls is detected, and
            gets such calls in any case.
        track_acquisitions: True if the warning about an abandoned lock names the line that acquired it.
        renewal_slack: The share of its interval, 0 to 0.5, by which a renewal may come early to join others that are due
            at the same server: a wake-up less, and a call less where their timeouts are equal. Such locks are due together
            from then on. Beside other timeouts a lock may go on joining: at a quarter that is up to a third more renewals.
            With 0 none comes early; a lock that is alone never is.
        prefix: Text that precedes the name of each lock in its key, such as ``"billing:"``. The server, ACLs and the
            ``wheel-lock`` commands see both together; this context, its results, errors and log records know the name only.
            Exported texts have both: a context adopts them if its own prefix, which may be empty, is the beginning.
        timeout: The time-to-live in seconds of locks that are given none.
        blocking_timeout: The longest wait in seconds of locks that are given none; None for ever. Leaders wait for ever.
        owner: A readable name of what holds the locks, such as ``"billing@host-7"``: 1 to 64 printable characters, at most
            64 bytes as UTF-8; by default the host's name and the number of the process. The context's connections have it
            in their names (CLIENT LIST).
        readable_owner: True if each token begins with the owner: :meth:`Lock.holder` returns it, also in other processes,
            and each client that may read the lock's key sees it. False hides it, and saves its bytes in each lock.
        label: The name of this context in metrics, dumps and log records, 1 to 64 printable characters; by default the
            ``owner`` that is given, else the address of the server. Contexts with one label share their metrics.
        watch: True to have the server report at once when the key of a held lock is deleted, overwritten, expired or
            flushed (CLIENT TRACKING, Redis 6 and newer), so that the loss is noticed within milliseconds and not at the
            next renewal. It takes one more connection per server, and is for locks with one holder. Where the server
            refuses it a WARNING says so, and losses are noticed at renewals.
        release_on_crash: True to have the locks released within milliseconds when this process is killed or crashes, by a
            child process; or the path of the socket of ``wheel-lock keeper``, which does the same for all processes of a
            host. By default the environment variable WHEEL_LOCK_KEEPER, which is such a path; without that, and with False,
            they stay until their timeouts. What goes on after the end of the process - programs that it has started,
            requests on their way - is no longer excluded then: see docs/operations/crashes.md. Linux only.
        release_delay: Seconds between the end of the process and that release, as a grace for what goes on.
        fallback_interval: Seconds after which a waiter without a wake-up tries again, at the latest.
        min_replicas: The number of replicas that must acknowledge a grant (WAIT) before it counts. Otherwise it is undone,
            and acquiring raises :class:`~wheel_lock.NotReplicated`.
        replica_timeout: Seconds that the acknowledgements may take.

    Raises:
        TypeError: ``client`` is not a client of one server over a socket, or ``timer`` is not a timer.
        ValueError: A setting is out of range, or ``release_on_crash`` is not possible: on this system, or over TLS with a
            connection class or function of your own.

    Example:
        >>> from wheel_lock.testing import fake_context
        >>> with fake_context() as context:
        ...     with context.lock("order:42", timeout=30.0) as lock:
        ...         lock.is_held
        True
    """

    _engine: Engine

    def __init__(
        self,
        client: AnyClient,
        *,
        timer: HashedWheelTimer | None = None,
        batch_size: int = 1000,
        response_timeout: float = 5.0,
        connect_timeout: float = 2.0,
        close_timeout: float = 5.0,
        release_on_close: bool = True,
        max_held: int | None = None,
        max_waiting: int | None = None,
        declare_keys: bool = False,
        track_acquisitions: bool = False,
        renewal_slack: float = 1 / 4,
        prefix: str = "",
        timeout: float = 30.0,
        blocking_timeout: float | None = None,
        owner: str | None = None,
        readable_owner: bool = True,
        label: str | None = None,
        watch: bool = False,
        release_on_crash: bool | str | os.PathLike[str] | None = None,
        release_delay: float = 0.0,
        fallback_interval: float = 5.0,
        min_replicas: int = 0,
        replica_timeout: float = 1.0,
    ) -> None:
        options = ContextOptions.of(locals())
        self._connector = connector_for(client, options.owner)
        options.check_keeper(self._connector.obstacle)
        self._client: AnyClient | None = None  # kept by a shared context whose connections need the client's objects
        self._engine = Engine(self._connector, options, HashedWheelTimer.chosen(timer))
        CONTEXTS.add(self._engine)

    @classmethod
    @spelled_out(ContextSettings, SETTINGS, closed=False)  # a subclass may have settings of its own
    def from_url(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[ContextSettings]
    ) -> Self:
        """Return a context for the server at ``url``. Connects at the first acquire only.

        Args:
            url: ``redis://``, ``rediss://`` or ``unix://`` as for ``redis.Redis.from_url``;
                ``redis+sentinel://[user:password@]host:26379,host:26379/MASTER/0`` for the master that Sentinels name, or
                ``redis+cluster://[user:password@]host:7000,host:7000`` for a cluster, with TLS ``rediss+sentinel://`` and
                ``rediss+cluster://``; ``valkey`` for ``redis`` is the same. The certificate and the host name in it are
                verified unless an option in the URL says otherwise. User, password and database are those of the master;
                the Sentinels' own are the options ``?sentinel_username=...&sentinel_password=...``.
            client_options: More arguments for the client: ``redis.Redis``, or ``redis.asyncio.RedisCluster`` for a cluster.
            settings: As for the class.

        Raises:
            TypeError: ``url`` is not a str.
            ValueError: It has none of these forms, an option that does not exist, or a database that is no number; or a
                setting is out of range. Of the URL the message shows the name of that option at most, and never a password.
        """
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, not {type(url).__name__}")
        return cls(parse(url).unconnected_client(**(client_options or {})), **settings)

    @classmethod
    def shared(cls, client: AnyClient) -> LockContext:
        """Return the one context of this process for ``client``, made at the first call and anew after a close.

        It has the default settings, and no prefix: all callers get the same one.

        Clients that share a connection pool share it, too: frameworks make a client per request, but keep the pool. The
        pool (or the client of a cluster) keeps the context, which is collected with it; held locks stay held. If a
        ``redis_connect_func``, a credential provider and the like refer to the client, the context keeps the client in
        turn. A program that keeps only a lock, but neither client nor context, cannot reconnect then.
        """
        pool: Any = getattr(client, "connection_pool", client)
        context: LockContext | None = getattr(pool, _SHARED, None)
        if context is None or context.closed:
            return exclusively(_shared_lock, cls._new_shared, client, pool)
        return context

    @classmethod
    def _new_shared(cls, client: AnyClient, pool: Any) -> LockContext:
        context: LockContext | None = getattr(pool, _SHARED, None)
        if context is None or context.closed:  # else another thread has made it meanwhile
            context = cls(client)
            if context._connector.let_go(client, pool):
                context._client = client  # a cycle that the client has anyway
            setattr(pool, _SHARED, context)
        return context

    @classmethod
    @spelled_out(QuorumSettings, SETTINGS)
    def quorum(cls, clients: Sequence[AnyClient], **settings: Unpack[QuorumSettings]) -> QuorumContext:
        """Return a context whose locks a majority of independent masters grants (Redlock).

        Args:
            clients: One for each master, at least three; an odd number, because one more tolerates no more failures.
            settings: See :class:`~wheel_lock.quorum.context.QuorumContext`.
        """
        return QuorumContext(clients, **settings)

    def lock(
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
        thread_local: bool = True,
    ) -> Lock:
        """Return an exclusive lock, not yet acquired.

        Args:
            name: Its name, 1 to 512 bytes (with the ``prefix``) of any value that do not begin with ``wheel_lock:``; text
                is sent as UTF-8.
            timeout: Its time-to-live in seconds, after which it expires if its owner crashes; by default that of the
                context, which is 30 unless it was given another one.
            blocking: True if ``acquire`` waits while another owner holds it.
            blocking_timeout: Longest such wait in seconds, reconnecting included; by default that of the context, which is
                for ever unless it was given one.
            renew: True to renew it until it is released.
            renew_every: Seconds between renewals; a third of the timeout by default. It must be less than
                0.99 timeout - 2 ms, the validity of a lease, and is rounded down to 30 ms before that, with a WARNING.
            max_renewals: The most renewals; it is lost when the last one runs out.
            max_hold: Seconds for which it may be held at most; it is lost then. Its key stays for up to one timeout
                more, in which a holder that still works can stop.
            retry_every: Seconds between attempts of a waiter, which then does not listen for wake-ups.
            max_attempts: The most attempts of a waiter, ``retry_every`` (0.1 by default) apart.
            fencing: True if each grant draws a number that only grows, to be checked by the protected resource.
            on_lost: Called once with a :class:`~wheel_lock.LostEvent`, on the context's notifier thread, if it is lost.
            thread_local: True if it belongs to the thread that acquires it: no other may release it, and its renewal ends
                with that thread.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        context = self._engine.options
        key = lock_name(name, context.prefix)
        # Most locks have the default for all the rest, of which the look-up in the cache of options costs a microsecond.
        plain = blocking is True and renew is True and fencing is False and thread_local is True
        if blocking_timeout is None:
            blocking_timeout = context.blocking_timeout_s
        if plain and blocking_timeout is renew_every is max_renewals is max_hold is retry_every is max_attempts is None:
            options = lock_options(context.timeout_s if timeout is None else timeout)
        else:
            options = context.of_lock(timeout, locals())
        if on_lost is not None:
            checked_callback(on_lost)
        return Lock(self._engine, FENCED if fencing else EXCLUSIVE, name, options, on_lost, key)

    def acquire_many(
        self,
        names: Iterable[Name],
        timeout: float | None = None,
        *,
        all_or_nothing: bool = False,
        blocking: bool = False,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
        thread_local: bool = False,
    ) -> dict[Name, Lock | None]:
        """Acquire each of ``names``, many of them per round trip; by default without waiting.

        Args:
            names: The names; duplicates are ignored.
            all_or_nothing: True if none is acquired unless all are.
            blocking: True to wait for locks that other owners hold. Each is waited for by itself, and those that are
                granted are held meanwhile: two callers with overlapping names may wait for each other until
                ``blocking_timeout`` ends it. With ``all_or_nothing`` nothing is held during the wait, so they cannot.
            blocking_timeout: Longest time in seconds for the whole call; by default that of the context if it is to wait.
                Without a limit each part of a try has ``response_timeout``.
            thread_local: As for :meth:`lock`, but False by default: locks in bulk belong to the process.
            timeout, renew, renew_every, max_renewals, max_hold, on_lost: As for :meth:`lock`.

        Returns:
            The held lock of each name, or None if another owner holds it (until the end of the wait, if there is one);
            with ``all_or_nothing`` all locks or only None. A lock that was lost while others were waited for is in the
            result, and its ``lost`` is the reason.

        Raises:
            ValueError: A name or a value is out of range; with ``blocking``, also if two names are of the same lock;
                before any I/O.
            TypeError: ``names`` is a str or bytes; before any I/O.
            LockUnavailable, LockTimeout, LockServerError: Not all could be requested. None is left acquired.
            TooManyLocks: ``max_held``, or ``max_waiting``, does not allow that many. None is left acquired.
        """
        # The locks do not wait, though the call may; the limit is that of the call.
        options = self._engine.options.of_lock(timeout, {**locals(), "blocking": False, "blocking_timeout": None})
        callback = checked_callback(on_lost)
        return run(
            operations.acquire_many(
                self, MultiLock, names, options, callback, all_or_nothing, blocking, blocking_timeout
            )
        )

    @uninterrupted_start
    def release_many(self, locks: Iterable[Lock | None]) -> None:
        """Release ``locks``, many of them per round trip. None is skipped, so results of ``acquire_many`` can be passed.

        All of ``locks`` is read first: if the iterable raises half-way, by itself or by an interruption, nothing is
        released. After an interruption before or after that, all of it is released, without waiting for the server.

        Raises:
            LockNotHeld, WrongThread: This thread cannot release one of them; nothing has been released then.
            TypeError: One of them is reentrant, or not a lock; nothing has been released then.
            ValueError: One of them belongs to another context; nothing has been released then.
            LocksLost: Some had been lost before; the others are released.
            LockUnavailable, LockTimeout, LockServerError: As for :meth:`Lock.release`.
        """
        run(operations.release_many(self, locks))

    def adopt(self, text: str, *, on_lost: OnLost | None = None, thread_local: bool = True) -> Lock:
        """Take over a lock that was given up with :meth:`Lock.export`, in this or another process.

        The new lease has the same fence, and a token of its own, so a text works once. It begins with a whole timeout.

        Args:
            text: The result of ``export``: a secret, sufficient to take the lock.
            on_lost, thread_local: As for :meth:`lock`; all other parameters are those of the exporter.

        Returns:
            The lock, held.

        Raises:
            InvalidHandoff: The text is malformed, has been changed, has another fence than its lock, or the lock's
                ``max_hold`` is over.
            LockLost: The lease has expired, or has been adopted already.
            LockNotAcquired: It was adopted, but the reply came too late to hold it; it is released.
            TooManyLocks: ``max_held`` does not allow one more. The text can still be used.
            LockUnavailable, LockTimeout, LockServerError: As for :meth:`Lock.acquire`.
        """
        return run(operations.adopt(self, Lock, text, checked_callback(on_lost), thread_local))

    def force_release(self, name: str | bytes, *, foreign: bool = False) -> tuple[Holder, ...]:
        """Release a lock of any kind for its holders, whatever process they are in, and wake its waiters.

        The server is asked for the holders, and releases exactly those. Each of them finds out with its next renewal, and
        reports a loss ("key gone"); those of this context at once. Until then it may still act as the holder,
        as after a ``DEL`` by hand: what it protects should check fences. Fences, permits and waiters stay.

        Args:
            name: The lock's name.
            foreign: True to delete also a string that has not the form of a token: that of a lock with a token which its
                holder has chosen, or the data of another application.

        Returns:
            The holders that were released; empty if there was none.

        Raises:
            HolderChanged: The lock got another holder between the two commands, and was not released.
            WheelLockError: The key belongs to no lock, or has more than 64 holders; nothing was released.
            LockUnavailable, LockTimeout, LockServerError: The server could not be reached, did not answer, or refused. It
                may have released the lock all the same.
            ValueError: The name is invalid; before any I/O.
        """
        return run(operations.force_release(self, name, bool(foreign)))

    def export_many(self, locks: Iterable[Lock | None]) -> dict[str | bytes, str | None]:
        """Give up many locks without releasing them, so that they can be adopted; see :meth:`Lock.export`.

        All of them are checked first. If the call is interrupted, all that it has exported is released, because the texts
        reach no caller.

        Args:
            locks: The locks, each held by this thread (or by the process); None is skipped.

        Returns:
            The text of each name, a secret that works once; None for a lock that was lost before, whose ``lost`` is the
            reason.

        Raises:
            LockNotHeld, WrongThread: This thread cannot export one of them; nothing has been exported then.
            WheelLockError: One of them is of a kind that cannot be handed over; nothing has been exported then.
            TypeError: One of them is not a lock.
            ValueError: Two of them have one name, or one belongs to another context; nothing has been exported then.
        """
        return run(operations.export_many(self, locks))

    def adopt_many(
        self, texts: Iterable[str | None], *, on_lost: OnLost | None = None, thread_local: bool = False
    ) -> dict[str | bytes, Lock | None]:
        """Take over many exported locks, each as by :meth:`adopt`, with many calls on their way at a time.

        If the call is interrupted, what it has adopted is released; a text whose adoption was not sent can still be used.

        Args:
            texts: Results of ``export``, or the values of that of ``export_many``; None is skipped.
            on_lost: As for :meth:`lock`.
            thread_local: As for :meth:`lock`, but False by default: locks in bulk belong to the process.

        Returns:
            The held lock of each name; None if it has expired, was adopted before, or may not be held any longer.

        Raises:
            InvalidHandoff: A text is malformed or has been changed, or two are of one lock; before any I/O.
            TypeError: ``texts`` is a str or bytes; before any I/O.
            LocksNotAdopted: Some could not be adopted for another reason, such as the network. Its ``errors`` has the
                reason of each, its ``locks`` what this method would have returned: those that were adopted are held.
        """
        return run(operations.adopt_many(self, Lock, texts, checked_callback(on_lost), thread_local))

    @property
    def asyncio(self) -> AsyncContext:
        """This context for asyncio: the same methods, awaitable."""
        return AsyncContext(self._engine, self)

    def __repr__(self) -> str:
        return f"<LockContext {self._engine.connector.describe()}{self._under} {self._state}>"


_SHARED = "_wheel_lock_context"  # attribute of a pool: a table would keep contexts and their pools for ever
_shared_lock = RLock()

in_forked_child(CONTEXTS.after_fork_in_child)


@in_forked_child
def _after_fork() -> None:
    global _shared_lock
    _shared_lock = RLock()
