"""Release: the request that ends a lease."""

from __future__ import annotations

import enum

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import LeaseRequest
from wheel_lock.engine.requests.query import Query
from wheel_lock.errors import LockLost, LossReason, WheelLockError
from wheel_lock.lease import Lease
from wheel_lock.lock_types import replies
from wheel_lock.net.capabilities import SHARDED
from wheel_lock.protocol.resp import Reply, command
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError


def release(table: LeaseTable, lease: Lease, future: Future[None]) -> None:
    """Release one lease. Nothing more is sent for it once ``future`` is completed."""
    error = table.begin_release(lease)
    if error is None:
        request = (Release if group_of(lease).lock_type.unique_tokens else CallerTokenRelease)(table, lease, future)
        if table.listener.queues:  # not its length, which costs a call
            table.listener.release(lease, request.begin)
        else:
            request.start()  # there are no waiters
    elif lease in table.swaps:
        table.swaps[lease].release(future)
    else:
        future.set_exception(error)


def announce(table: LeaseTable, key: bytes, channel: bytes) -> None:
    """Wake the waiters of other processes, because the lock with this key has been released quietly.

    Like any request it waits for a connection, and is sent again if that breaks, until the time limit of requests.
    """
    publish = b"SPUBLISH" if table.router.shard_of(key).node.capability == SHARDED else b"PUBLISH"
    Query(table, key, key, Command(None, 0, 0, command(publish, channel, b"0")), replies.count, Future(noop)).start()


class Wakeup(enum.IntEnum):
    """The wake-ups that the tries of a release cause."""

    LOUD = 0  # each does, and its reply counts them
    QUIET = 1  # the next need not, because an acquire follows it in the same write
    QUIET_SENT = 2  # the latest did not
    LOUD_AGAIN = 3  # the latest does, but an earlier one did not


LOUD, QUIET, QUIET_SENT, LOUD_AGAIN = Wakeup


class Release(LeaseRequest):
    """The release of one lease. Its future receives None when the key is gone, or LockLost if it was another owner's."""

    __slots__ = ("_lock_type", "_wakeup")

    may_wait = False

    def __init__(self, table: LeaseTable, lease: Lease, future: Future[None]) -> None:
        super().__init__(table, lease, future)
        self._lock_type = group_of(lease).lock_type
        self._wakeup: Wakeup = LOUD

    def begin(self, quiet: bool) -> None:
        """Send the release; it wakes no waiters if it is ``quiet``."""
        if quiet:
            self._wakeup = QUIET
        self.start()

    def go_on(self, sent_at: float, executed: bool, reply: Reply) -> None:
        """Continue a try that the caller itself was about to send at ``sent_at``, on the direct path.

        Args:
            sent_at: When that was, in seconds of the timer's clock.
            executed: True if the server may have executed it.
            reply: Its reply; None if it has none.
        """
        if executed:
            self.sent()
        self.declared: bool = True
        self.until: float = sent_at + self.limit_s
        self.look_from_now()
        if reply is None:
            self.node.send(self)
        else:
            self.on_reply(reply)

    def encode_first(self, capability: int) -> bytes | None:
        return None if self._wakeup else self._lock_type.keyed_release(self.lease, capability)

    def call(self) -> Command:
        if self._wakeup is QUIET:
            self._wakeup = QUIET_SENT
            return self._lock_type.release_quietly(self.lease)
        if self._wakeup is QUIET_SENT:
            self._wakeup = LOUD_AGAIN
        return self._lock_type.release(self.lease)

    @property
    def awaited(self) -> bool:
        return True  # also after its call has ended: other owners wait for the lock

    def value_reply(self, reply: Reply) -> None:
        outcome = self._lock_type.parse_release(reply)
        if self.finished:
            return
        if isinstance(outcome, ServerError):
            self.error_reply(outcome)
            return
        self.finish()
        if not isinstance(outcome, LossReason):
            if self._wakeup is not QUIET_SENT and self.table.listener.queues:
                self.table.listener.listened(self.lease, outcome)
        elif not self.maybe_executed_before:  # else "gone" and "taken" are the success of an earlier try
            self.table.mark_lost([self.lease], outcome)
            self._future.set_exception(LockLost(self.lease.name, outcome))
            return
        elif self._wakeup and outcome is LossReason.KEY_GONE:
            announce(self.table, self.lease.key, self._lock_type.wake_channel(self.lease.key))
        self.table.release_done([self.lease])
        self._future.set_result(None)

    def failed(self, error: WheelLockError) -> None:
        self.table.release_unknown([self.lease])
        super().failed(error)


class CallerTokenRelease(Release):
    """The release of a lease with a caller token. When that has lapsed nothing is sent: its key may be a namesake's."""

    __slots__ = ()

    def encode(self, capability: int) -> bytes:
        if self.timer.clock.now() < self.lease.deadline:
            return super().encode(capability)
        self.finish()
        self.table.mark_lost([self.lease])
        self._future.set_exception(self.lease.lost_error())
        return b""

    @property
    def repeatable(self) -> bool:
        return False  # a namesake may have acquired the lock by the next try
