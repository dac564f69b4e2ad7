"""Requests about a name and no lease: plain commands, looks at its holders, and the release of a lock for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from wheel_lock.engine.future import Future
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest
from wheel_lock.errors import LossReason, WheelLockError
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.lock_types.holders import LockState, force_release, look, parse_force_release, parse_look
from wheel_lock.options import lock_name
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.failures import guarded

T = TypeVar("T")


class Query(CallerRequest, Generic[T]):
    """A plain read about a name and its key; ``future`` receives what ``read`` returns for the reply."""

    __slots__ = ("_call", "_future", "_key", "_read")

    def __init__(
        self,
        table: LeaseTable,
        name: str | bytes,
        key: bytes,
        call: Command,
        read: Callable[[Reply], T],
        future: Future[T],
    ) -> None:
        super().__init__(table, table.router.shard_of(key).node, name)
        self._key = key
        self._call = call
        self._read = read
        self._future = future

    @property
    def may_wait(self) -> bool:
        return not self.sent_asking

    def call(self) -> Command:
        return self._call

    @property
    def key(self) -> bytes | None:
        return self._key

    def value_reply(self, reply: Reply) -> None:
        value = self._read(reply)
        self.finish()
        self._future.set_result(value)

    def error_reply(self, error: ServerError) -> None:
        if not self.finished and error.code == "WRONGTYPE":
            try:
                self.value_reply(None)  # the key has another type, so what was asked for does not exist
                return
            except MalformedReply:
                pass  # the query cannot be answered without it
        super().error_reply(error)

    def failed(self, error: WheelLockError) -> None:
        self._future.set_exception(error)


def look_up(table: LeaseTable, name: str | bytes, future: Future[LockState], limit_s: float | None = None) -> None:
    """Query the state of a lock. ``limit_s``, if given, bounds that further than the ``response_timeout``."""
    # The key itself is enough, and a user may have no right to its companions.
    key = lock_name(name, table.state.options.prefix)
    query = Query(table, name, key, look(key, companions=False), parse_look, future)
    if limit_s is not None:
        query.limit_s = min(query.limit_s, limit_s)
    query.start()


def look_at(table: LeaseTable, names: Sequence[str | bytes], limit_s: float, future: Future[list[LockState]]) -> None:
    """Look up several names, at least one, at once: within ``limit_s`` seconds.

    The result of ``future`` has the states of those that were answered in time, in the order of the names.
    """

    def answered() -> None:
        if all(answer.done for answer in answers):
            future.set_result([answer.result() for answer in answers if answer.error is None])

    answers: list[Future[LockState]] = [Future(partial(guarded, table.state, answered)) for _ in names]
    for name, answer in zip(names, answers, strict=True):
        look_up(table, name, answer, limit_s)


class ForceRelease(Query["int | None"]):
    """Release a lock for the holders that a look has found, of whatever process.

    A second execution after the first would find no holder, or another one, so the request is not sent again unless it was
    certainly not executed.

    Args:
        seen: The state with the expected holders, which the server compares with those that it has.
        own: The leases of this engine among them. If they are released they are lost: their keys are gone.
        future: Receives the number of holders that were removed, 0 if there is none any more, or None if they have changed.
    """

    __slots__ = ("_own",)

    may_wait = False

    def __init__(
        self,
        table: LeaseTable,
        name: str | bytes,
        seen: LockState,
        own: Sequence[Lease],
        future: Future[int | None],
    ) -> None:
        key = lock_name(name, table.state.options.prefix)
        super().__init__(table, name, key, force_release(key, seen.key_type, seen.values), parse_force_release, future)
        self._own = own

    @property
    def repeatable(self) -> bool:
        return not self.maybe_executed

    def value_reply(self, reply: Reply) -> None:
        removed = self._read(reply)
        if removed:
            # Also if the caller has stopped waiting: the keys are gone.
            own = self.table.state.direct.forced(self._own)
            self.table.mark_lost([lease for lease in own if lease.state <= EXTENDING], LossReason.KEY_GONE)
        if not self.finished:
            self.finish()
            self._future.set_result(removed)
