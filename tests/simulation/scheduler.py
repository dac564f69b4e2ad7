"""What decides in a simulation, and when: choices on a tape, events on one clock, and callers that wait.

All chance comes from streams of one tape. A stream is a list of numbers; each number is one choice with all that belongs
to it, such as an action of a user with its parameters, or the delay of a message. The numbers are drawn by the seed and
recorded; on replay they are read, and a stream that has ended goes on with zeros. Zero is always the most boring choice:
no delay, no fault, no further action. So a tape is made smaller by taking numbers out, or by setting them to zero, and no
change in one stream moves the choices of another.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")

_BITS = 60  # size of a choice


class Dice:
    """One choice, from which several small ones are taken."""

    __slots__ = ("left", "nothing")

    def __init__(self, number: int) -> None:
        self.left = number
        self.nothing = number == 0  # the choice to do nothing

    def below(self, limit: int) -> int:
        """Return a number from 0 to ``limit`` - 1."""
        self.left, chosen = divmod(self.left, limit)
        return chosen

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of ``choices``; the first is the boring one."""
        return choices[self.below(len(choices))]

    def one_in(self, count: int) -> bool:
        """Return True in one of ``count`` cases."""
        return self.below(count) == count - 1

    def up_to(self, most: float) -> float:
        """Return a number from 0 to ``most``, in a thousand steps."""
        return most * self.below(1001) / 1000


class Stream:
    """The choices of one part of the world, in order."""

    __slots__ = ("_next", "_random", "numbers")

    def __init__(self, seed: str, recorded: Sequence[int] | None) -> None:
        self._random = random.Random(seed) if recorded is None else None
        self._next = iter(recorded or ())
        self.numbers: list[int] = []

    def draw(self) -> Dice:
        number = next(self._next, 0) if self._random is None else self._random.getrandbits(_BITS)
        self.numbers.append(number)
        return Dice(number)


Recorded = Mapping[str, Sequence[int]]


class Tape:
    """All choices of a history.

    Args:
        seed: Decides on all choices, and where there is a ``recorded`` tape on nothing but secrets.
        recorded: The choices to make instead, by the names of their streams.
    """

    def __init__(self, seed: int, recorded: Recorded | None = None) -> None:
        self.seed = seed
        self._recorded = recorded
        self._streams: dict[str, Stream] = {}
        self.secrets = random.Random(f"{seed}/secrets")

    def stream(self, name: str) -> Stream:
        """Return the stream of that name."""
        stream = self._streams.get(name)
        if stream is None:
            recorded = None if self._recorded is None else self._recorded.get(name, ())
            stream = self._streams[name] = Stream(f"{self.seed}/{name}", recorded)
        return stream

    @property
    def recorded(self) -> dict[str, list[int]]:
        """The choices that were made."""
        return {name: list(stream.numbers) for name, stream in self._streams.items()}

    def to_bytes(self) -> bytes:
        return json.dumps({"seed": self.seed, "streams": self.recorded}).encode()


class Event(list[Any]):
    """Something that is going to happen: its moment, a number, and the call, which is None once it is cancelled.

    A list is made and compared without a call of Python code.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[2] = None


class Stopped(BaseException):
    """Ends the callers that are left over at the end of a history."""


class Scheduler:
    """One clock, and the events on it in order.

    Attributes:
        now: Seconds since the beginning.
        story: What happened, as moments and texts with their arguments.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.story: list[tuple[float, str, tuple[Any, ...]]] = []
        self._heap: list[Event] = []
        self._number = 0
        self._hub = getcurrent()

    def note(self, text: str, *arguments: Any) -> None:
        """Add a line to the story."""
        self.story.append((self.now, text, arguments))

    def after(self, delay_s: float, call: Callable[[], object]) -> Event:
        """Have ``call()`` called in ``delay_s`` seconds; events of one moment come in the order of these calls."""
        self._number = number = self._number + 1
        event = Event((self.now + delay_s, number, call))
        heappush(self._heap, event)
        return event

    def run(self, until: float, enough: Callable[[], object] = lambda: False) -> None:
        """Let everything happen until that moment, or until it is ``enough``."""
        heap = self._heap
        while heap and heap[0][0] <= until and not enough():
            moment, _, call = heappop(heap)
            if call is not None:
                if moment > self.now:
                    self.now = moment
                call()
        if not enough():
            self.now = max(self.now, until)

    # -- callers: each is a greenlet that runs until it waits ----------------------------------------------------------

    def wait(self) -> Any:
        """Let the others run until one switches back to this caller; return what that passes on."""
        return self._hub.switch()

    def spawn(self, body: Callable[[], object]) -> greenlet:
        """Return a new caller, which begins when it is switched to."""
        return greenlet(body, self._hub)
