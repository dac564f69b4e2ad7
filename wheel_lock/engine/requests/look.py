"""Looks: what a server has under the names of locks, for callers that want to know their holders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from wheel_lock.engine.future import Future
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.query import Query
from wheel_lock.lock_types.holders import LockState, look, parse_look
from wheel_lock.options import lock_name
from wheel_lock.runtime.failures import guarded


class Look(Query[LockState]):
    """The query for the state of a lock. ``limit_s``, if given, bounds it further than the ``response_timeout``."""

    __slots__ = ()

    def __init__(
        self, table: LeaseTable, name: str | bytes, future: Future[LockState], limit_s: float | None = None
    ) -> None:
        # The key itself is enough, and a user may have no right to its companions.
        key = lock_name(name, table.state.options.prefix)
        super().__init__(table, name, key, look(key, companions=False), parse_look, future)
        if limit_s is not None:
            self.limit_s: float = min(self.limit_s, limit_s)


def look_at(table: LeaseTable, names: Sequence[str | bytes], limit_s: float, future: Future[list[LockState]]) -> None:
    """Look at several names at once; the result of ``future`` has the states of those that were answered in time.

    Args:
        table: The lease table of the engine.
        names: The names, at least one.
        limit_s: The time limit of the whole, in seconds.
        future: Receives the states, in the order of the names.
    """
    answers: list[Future[LockState]] = []

    def answered() -> None:
        if len(answers) == len(names) and all(answer.done for answer in answers):
            future.set_result([answer.result() for answer in answers if answer.error is None])

    for _ in names:
        answers.append(Future(partial(guarded, table.state, answered)))
    for name, answer in zip(names, answers, strict=True):
        Look(table, name, answer, limit_s).start()
