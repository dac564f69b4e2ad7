"""When a wait queue tries for its lock: its states, the events, and the decision for each pair in one table.

The queue sets the next state and does the action, each in one place. At most one try of a contender is in flight, and a
wake-up that comes meanwhile is remembered in the state, because the try may have been refused just before it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class QueueState(enum.IntEnum):
    """The state of one contender: the head of a queue, or one waiter of a queue that the server keeps."""

    EMPTY = 0  # no waiters
    HELD_HERE = enum.auto()  # a lease of this process is known to keep all others out
    WAITING = enum.auto()  # for a wake-up, or the next look
    PAUSED = enum.auto()  # the same, after wake-ups in vain: until the next tick
    YIELDING = enum.auto()  # other processes have their chance, until the next tick
    TRYING = enum.auto()  # a try is in flight
    TRYING_WOKEN = enum.auto()  # and a wake-up has come meanwhile
    TRYING_AGAIN = enum.auto()  # and a lease of this process, or the time of the waiter, has ended meanwhile


class QueueEvent(enum.IntEnum):
    """A possible cause of the next try."""

    JOINED = 0  # a waiter has become the contender
    JOINED_UNHEARD = enum.auto()  # the same, and a message since its own first try had no listener
    SUBSCRIBED = enum.auto()  # earlier messages had no listener
    MESSAGE = enum.auto()  # the lock is free, says another process; any user who may publish can have sent it
    RELEASED = enum.auto()  # a lease of this process has ended
    DUE = enum.auto()  # there was no wake-up for a while
    TIME_UP = enum.auto()  # of the contender
    TIME_UP_BEHIND = enum.auto()  # of a waiter behind it
    REFUSED = enum.auto()  # the try in flight was refused


class QueueAction(enum.IntEnum):
    """The reaction of a queue."""

    NOTHING = enum.auto()
    TRY = enum.auto()  # with a call that says how long the holder has left
    TRY_AT_PACE = enum.auto()  # the same, unless earlier wake-ups were in vain
    TRY_PLAIN_AT_PACE = enum.auto()  # with the cheapest call, unless earlier wake-ups were in vain
    FOLLOW = enum.auto()  # try behind a release of this process, or yield after many in a row
    LOOK = enum.auto()  # try if the caller has set an interval, although the lock is held here
    LOOK_LATER = enum.auto()
    PREPARE = enum.auto()  # look later, and make the next try while there is time
    REFUSE = enum.auto()  # the lock is certain to be held


class Decision(NamedTuple):
    """An action, and the next state; None for that which the action sets."""

    action: QueueAction
    state: QueueState | None = None


# By name, because Python 3.11 takes long to find a member in its class.
EMPTY, HELD_HERE, WAITING, PAUSED, YIELDING, TRYING, TRYING_WOKEN, TRYING_AGAIN = QueueState
JOINED, JOINED_UNHEARD, SUBSCRIBED, MESSAGE, RELEASED, DUE, TIME_UP, TIME_UP_BEHIND, REFUSED = QueueEvent
NOTHING, TRY, TRY_AT_PACE, TRY_PLAIN_AT_PACE, FOLLOW, LOOK, LOOK_LATER, PREPARE, REFUSE = QueueAction
_NOTHING, _TRY, _FOLLOW, _LOOK_LATER = map(Decision, (NOTHING, TRY, FOLLOW, LOOK_LATER))
_WOKEN, _AGAIN = Decision(NOTHING, TRYING_WOKEN), Decision(NOTHING, TRYING_AGAIN)

_DECISIONS: dict[QueueState, dict[QueueEvent, Decision]] = {
    EMPTY: {},
    HELD_HERE: {
        JOINED: _LOOK_LATER,
        JOINED_UNHEARD: _LOOK_LATER,
        DUE: Decision(LOOK, WAITING),
        TIME_UP: Decision(REFUSE),
    },
    WAITING: {
        JOINED: _LOOK_LATER,
        JOINED_UNHEARD: _TRY,
        SUBSCRIBED: Decision(TRY_AT_PACE),
        MESSAGE: Decision(TRY_PLAIN_AT_PACE),
        RELEASED: _FOLLOW,
        DUE: _TRY,
        TIME_UP: _TRY,
        TIME_UP_BEHIND: _TRY,
    },
    PAUSED: {RELEASED: _FOLLOW, DUE: _TRY, TIME_UP: _TRY, TIME_UP_BEHIND: _TRY},
    YIELDING: {DUE: _TRY, TIME_UP: _TRY},
    TRYING: {SUBSCRIBED: _WOKEN, MESSAGE: _WOKEN, RELEASED: _AGAIN, TIME_UP: _AGAIN, REFUSED: Decision(PREPARE)},
    TRYING_WOKEN: {RELEASED: _AGAIN, TIME_UP: _AGAIN, REFUSED: Decision(TRY_PLAIN_AT_PACE)},
    TRYING_AGAIN: {REFUSED: _TRY},
}

DECISIONS: list[list[Decision]] = [
    [_DECISIONS[state].get(event, _NOTHING) for event in QueueEvent] for state in QueueState
]
"""The decision for each state and event. It changes nothing: the queue sets the state, and does the action."""

IN_FLIGHT: frozenset[QueueState] = frozenset((TRYING, TRYING_WOKEN, TRYING_AGAIN))
