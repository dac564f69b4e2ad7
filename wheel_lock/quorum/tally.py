"""The tally of a request to all nodes, which is decided by a majority of their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from wheel_lock.engine.future import Future
from wheel_lock.errors import LockLost, LockServerError, LockUnavailable, WheelLockError
from wheel_lock.quorum.node import NodeEngine

T = TypeVar("T")


class VoteTally:
    """Answers of nodes, counted until a majority is certain. Timer's thread only.

    Args:
        decided: Called once, with this object, when the outcome is certain.
        wait_for_all: Whether to wait for all answers although the outcome is certain, until :meth:`decide_early`.

    Attributes:
        yes: The number of nodes that agree.
        no: The answers of the nodes that do not.
        failures: The errors of the nodes that could not be asked, or did not answer.
    """

    def __init__(self, nodes: int, quorum: int, decided: Callable[[VoteTally], object], wait_for_all: bool) -> None:
        self._nodes = nodes
        self._quorum = quorum
        self._decided = decided
        self._wait_for_all = wait_for_all
        self._over = False
        self.yes = 0
        self.no: list[object] = []
        self.failures: list[Exception] = []

    def ask(self, node: NodeEngine, send: Callable[[Future[T]], object], agrees: Callable[[T], object] = bool) -> None:
        """Call ``send(future)``, which asks ``node``; ``agrees`` returns whether its answer is a yes.

        A node that is suspected to be dead has failed at once: a later reply is ignored.
        """

        def answered() -> None:
            if isinstance(future.error, LockLost):
                self.no.append(future.error.reason)
            elif future.error is not None:
                self.failures.append(future.error)
            elif agrees(future.result()):
                self.yes += 1
            else:
                self.no.append(future.result())
            self._check()

        future: Future[T] = Future(answered)
        send(future)
        if node.is_silent:
            future.set_exception(LockUnavailable(f"{node.connector.describe()} is silent"))

    def deny(self, answer: object) -> None:
        """Count the ``answer`` of a node that need not be asked, which is a no."""
        self.no.append(answer)
        self._check()

    @property
    def agreed(self) -> bool:
        """True if a majority agrees."""
        return self.yes >= self._quorum

    @property
    def denied(self) -> bool:
        """True if so many nodes do not agree that there can be no majority."""
        return len(self.no) > self._nodes - self._quorum

    def decide_early(self) -> None:
        """Decide as soon as the outcome is certain, from now on."""
        self._wait_for_all = False
        self._check()

    def _check(self) -> None:
        certain = (self.agreed or self.denied) and not self._wait_for_all
        if not self._over and (certain or self.yes + len(self.no) + len(self.failures) == self._nodes):
            self._over = True
            self._decided(self)

    def failure(self, name: str | bytes | None) -> WheelLockError:
        """Return the error to raise if too few nodes answered, or agree."""
        if not self.failures:
            return WheelLockError(f"Only {self.yes} of {self._nodes} nodes agree, and it takes {self._quorum}", name)
        first = self.failures[0]
        error_type = type(first) if isinstance(first, WheelLockError) else WheelLockError
        text = f"Only {self._nodes - len(self.failures)} of {self._nodes} nodes answered: {first}"
        return caused_by(first, error_type(text, name))


def caused_by(first: Exception, error: WheelLockError) -> WheelLockError:
    """Return ``error``, for a caller whom too few nodes have answered, with the first of their failures as its cause."""
    if isinstance(error, LockServerError) and isinstance(first, LockServerError):
        error.code = first.code
    error.__cause__ = first
    return error
