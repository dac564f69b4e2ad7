"""Query: the request of a plain read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from wheel_lock.engine.future import Future
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest
from wheel_lock.errors import WheelLockError
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError

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

    @property
    def key(self) -> bytes | None:
        return self._key

    def failed(self, error: WheelLockError) -> None:
        self._future.set_exception(error)
