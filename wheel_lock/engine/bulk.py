"""Work on many leases at once: acquire, release, and the sweep when a context is closed.

The work is cut into chunks of one script call each, a few of them under way at a time, so that a million locks neither
fill the memory nor keep renewals waiting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from wheel_lock.engine.operation import Operation
from wheel_lock.engine.requests import CallerRequest, batch_call, terms_of
from wheel_lock.errors import ContextClosed, LockServerError, LossReason, WheelLockError, quoted
from wheel_lock.lease import Lease, State
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import GONE, Reply, error_text, exceptions
from wheel_lock.protocol.scripts import Call

if TYPE_CHECKING:
    from wheel_lock.engine.engine import Engine

CHUNKS_IN_FLIGHT = 8  # enough to keep the server busy, few enough to let renewals in between


class _Chunk(CallerRequest):
    """A part of a bulk operation: one script call."""

    __slots__ = ("_bulk", "leases")

    def __init__(self, bulk: Bulk, leases: Sequence[Lease]) -> None:
        engine = bulk.engine
        super().__init__(engine.timer, engine.node, leases[0].name, engine.options.response_timeout_s)
        self._bulk = bulk
        self.leases = leases

    def call(self) -> Call:
        return self._bulk.call(self.leases)

    def value_reply(self, reply: Reply) -> None:
        odd = exceptions(reply, len(self.leases))
        if not self.finished:
            self.finish()
            self._bulk.chunk_done(self, dict(odd))

    def broken(self, error: Exception) -> None:
        if terms_of(self.leases[0]).kind.own_tokens:
            super().broken(error)
        else:
            self.refused(error)  # a release: by the next try the keys may be namesakes'

    def failed(self, error: WheelLockError) -> None:
        self._bulk.chunk_failed(self, error)


class Bulk:
    """Work on many leases of one group, in chunks, a few of them under way at a time."""

    def __init__(self, engine: Engine, leases: Iterable[Lease]) -> None:
        self.engine = engine
        self._leases = list(leases)
        self._sealed = True  # there are no more to come
        self._next = 0
        self._under_way: set[_Chunk] = set()
        self._stopped = False

    def pump(self) -> None:
        """Send as many chunks as may be under way; finish when there are none left."""
        size = self.engine.options.batch_size
        while not self._stopped and len(self._under_way) < CHUNKS_IN_FLIGHT and self._next < len(self._leases):
            span = self._leases[self._next : self._next + size]
            _, of_one_group = next(itertools.groupby(span, key=terms_of))
            chunk = _Chunk(self, list(of_one_group))
            self._next += len(chunk.leases)
            self.begin_chunk(chunk.leases)
            self._under_way.add(chunk)
            chunk.start()
        if not self._under_way and (self._sealed or self._stopped):
            self.finished()

    def begin_chunk(self, leases: Sequence[Lease]) -> None:
        """Do what has to be done before a chunk is sent."""

    def call(self, leases: Sequence[Lease]) -> Call:
        """Return the call about one chunk."""
        raise NotImplementedError

    def chunk_done(self, chunk: _Chunk, odd: dict[int, int | str]) -> None:
        """Take the outcome of one chunk and go on."""
        self._under_way.discard(chunk)
        self.take(chunk, odd)
        self.pump()

    def chunk_failed(self, chunk: _Chunk, error: WheelLockError) -> None:
        """One chunk has no outcome."""
        self._under_way.discard(chunk)
        self.miss(chunk, error)
        self.pump()

    def take(self, chunk: _Chunk, odd: dict[int, int | str]) -> None:
        """Take the outcome of one chunk."""
        raise NotImplementedError

    def miss(self, chunk: _Chunk, error: WheelLockError) -> None:
        """Take the failure of one chunk."""
        raise NotImplementedError

    def finished(self) -> None:
        """Nothing is under way any more, and nothing is left to send."""
        raise NotImplementedError


class AcquireMany(Bulk):
    """Acquire many locks, each on its own. A failure undoes all of it: a caller gets a whole answer or an error.

    With ``all_or_nothing`` one lock that another holds undoes all of it, too. The caller hands over leases while it still
    makes others, and seals it when it has made the last.
    """

    def __init__(
        self, engine: Engine, options: LockOptions, operation: Operation[None], all_or_nothing: bool = False
    ) -> None:
        super().__init__(engine, ())
        self._sealed = False
        self._all_or_nothing = all_or_nothing
        self._places = 0
        self._options = options
        self._operation = operation
        self._granted: list[Lease] = []
        self._undoing = False
        self._error: WheelLockError | None = None

    def call(self, leases: Sequence[Lease]) -> Call:
        terms = terms_of(leases[0])
        assert terms.kind.acquire_many is not None
        return batch_call(terms.kind.acquire_many, terms.kind, leases, terms.ttl)

    def take(self, chunk: _Chunk, odd: dict[int, int | str]) -> None:
        self._give_places_back(len(chunk.leases))
        for index, verdict in odd.items():
            lease = chunk.leases[index]
            self.engine.turn_down([lease], isinstance(verdict, str) and chunk.tries > 1)
            if isinstance(verdict, str):
                self._stop(LockServerError(f"{error_text(verdict)} (lock {quoted(lease.name)})", lease.name))
        granted = [lease for index, lease in enumerate(chunk.leases) if index not in odd] if odd else chunk.leases
        if granted and self.engine.grant(granted, self._options, chunk.sent_at):
            self._granted.extend(granted)
        elif granted:
            self.engine.turn_down(granted, True)
            granted = []
            if self.engine.closed:
                self._stop(ContextClosed("The context has been closed"))
        if self._all_or_nothing and len(granted) < len(chunk.leases):
            self._stopped = True

    def miss(self, chunk: _Chunk, error: WheelLockError) -> None:
        self._give_places_back(len(chunk.leases))
        self.engine.turn_down(chunk.leases, chunk.tries > isinstance(error, LockServerError))
        self._stop(error)

    def _stop(self, error: WheelLockError) -> None:
        self._stopped = True
        self._error = self._error or error

    def finished(self) -> None:
        self.engine.turn_down(self._leases[self._next :], False)
        self._next = len(self._leases)
        self._give_places_back(self._places)
        if self._error is not None:
            self._undo()
            self._operation.fail(self._error)
        elif not self._stopped:
            self._operation.complete(None)
        elif not self._undoing:
            self._undoing = True
            # Not before all is undone: the caller must not meet its own grants on the server.
            self._undo(lambda: self._operation.complete(None))

    def begin(self, expected: int) -> None:
        """Get ready for ``expected`` leases, unless the context takes no more."""
        refusal = self.engine.refusal(None, expected)
        if refusal is not None:
            self._stop(refusal)
        else:
            self._places = expected
            self.engine.acquiring += expected

    def _give_places_back(self, places: int) -> None:
        """Of those that ``max_held`` counts as being acquired, ``places`` are acquired now, or will not be."""
        places = min(places, self._places)
        self._places -= places
        self.engine.acquiring = max(self.engine.acquiring - places, 0)  # a thread that died has forgotten them

    def add(self, leases: Sequence[Lease]) -> None:
        """Take more leases, and send what may be sent."""
        self._leases.extend(leases)
        self.pump()

    def seal(self) -> None:
        """There are no more to come."""
        self._sealed = True
        self.pump()

    def give_up(self) -> None:
        """The caller waits no more: undo what was granted and what may have been."""
        self._stopped = True
        for chunk in list(self._under_way):
            chunk.finish()
            self.miss(chunk, WheelLockError("given up"))
        self._under_way.clear()
        self.finished()
        self._undo()

    def _undo(self, then: Callable[[], object] = lambda: None) -> None:
        granted = [lease for lease in self._granted if lease.state <= State.EXTENDING]
        self._granted.clear()
        self.engine.release_many(granted, Operation(then))


class ReleaseMany(Bulk):
    """Release many leases. Completes with the reasons of those that had been lost."""

    def __init__(
        self, engine: Engine, leases: Iterable[Lease], operation: Operation[dict[str | bytes, LossReason]]
    ) -> None:
        super().__init__(engine, leases)
        self._operation = operation
        self.losses: dict[str | bytes, LossReason] = {}
        self._error: WheelLockError | None = None

    def call(self, leases: Sequence[Lease]) -> Call:
        return terms_of(leases[0]).kind.release_many(leases)

    def take(self, chunk: _Chunk, odd: dict[int, int | str]) -> None:
        if not odd or chunk.tries > 1:
            self._freed(chunk.leases)
            return
        self._freed([lease for index, lease in enumerate(chunk.leases) if index not in odd])
        for index, verdict in odd.items():
            lease = chunk.leases[index]
            if isinstance(verdict, str) and not verdict.startswith("WRONGTYPE"):
                self.engine.unreleased([lease])
                self._error = LockServerError(f"{error_text(verdict)} (lock {quoted(lease.name)})", lease.name)
                continue
            reason = LossReason.KEY_GONE if verdict == GONE else LossReason.TAKEN
            self.losses[lease.name] = reason
            self.engine.lose([lease], reason)

    def _freed(self, leases: Sequence[Lease]) -> None:
        self.engine.freed(leases)
        if self.engine.lines:
            for lease in leases:
                self.engine.lines.ended(lease)

    def miss(self, chunk: _Chunk, error: WheelLockError) -> None:
        self.engine.unreleased(chunk.leases)
        self._error = error
        if not isinstance(error, LockServerError):
            self._stopped = True  # a server that does not answer is not asked chunk by chunk

    def finished(self) -> None:
        self.engine.unreleased(self._leases[self._next :])
        self._next = len(self._leases)
        if self._error is not None:
            self._operation.fail(self._error)
        else:
            self._operation.complete(self.losses)


class Sweep(Bulk):
    """The end of everything when a context is closed: chunk by chunk, leases are lost and released at the server."""

    def __init__(self, engine: Engine, leases: Iterable[Lease], operation: Operation[None]) -> None:
        super().__init__(engine, leases)
        self._operation = operation

    def call(self, leases: Sequence[Lease]) -> Call:
        return terms_of(leases[0]).kind.release_many(leases)

    def begin_chunk(self, leases: Sequence[Lease]) -> None:
        self.engine.lose(leases, LossReason.CONTEXT_CLOSED)

    def take(self, chunk: _Chunk, odd: dict[int, int | str]) -> None:
        pass

    def miss(self, chunk: _Chunk, error: WheelLockError) -> None:
        self._stopped = True  # what is left expires by itself

    def stop(self) -> None:
        """Take no more chunks: the time is up."""
        self._stopped = True
        self.finished()

    def finished(self) -> None:
        self.engine.lose(self._leases[self._next :], LossReason.CONTEXT_CLOSED)
        self._next = len(self._leases)
        self._operation.complete(None)
