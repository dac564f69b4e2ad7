"""The tally of a request to all nodes, which is decided by a majority of their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wheel_lock.engine.future import Future
from wheel_lock.errors import LockLost, WheelLockError


class VoteTally:
    """Answers of nodes, counted until a majority is certain. Timer's thread only.

    Args:
        nodes: The number of nodes.
        quorum: How many of them are a majority.
        decided: Called once, with this object, when the outcome is certain.
        patient: Whether to wait for all answers although the outcome is certain, until :meth:`hurry`.

    Attributes:
        yes: How many nodes have agreed.
        no: The answers of the nodes that have not.
        failures: The errors of the nodes that could not be asked, or did not answer.
    """

    def __init__(
        self, nodes: int, quorum: int, decided: Callable[[VoteTally], object], *, patient: bool = False
    ) -> None:
        self._nodes = nodes
        self._quorum = quorum
        self._decided = decided
        self._patient = patient
        self._over = False
        self.yes = 0
        self.no: list[object] = []
        self.failures: list[Exception] = []

    def future(self, read: Callable[[Any], bool] = lambda answer: True) -> Future[Any]:
        """Return the operation that one node's answer completes.

        Args:
            read: Returns whether an answer agrees.
        """

        def answered() -> None:
            if isinstance(future.error, LockLost):
                self.refused(future.error.reason)
            elif future.error is not None:
                self.failed(future.error)
            elif read(future.result()):
                self.yes += 1
                self._look()
            else:
                self.refused(future.result())

        future: Future[Any] = Future(answered)
        return future

    def refused(self, why: object) -> None:
        """Count a node that does not agree."""
        self.no.append(why)
        self._look()

    def failed(self, error: Exception) -> None:
        """Count a node that could not be asked, or did not answer."""
        self.failures.append(error)
        self._look()

    @property
    def agreed(self) -> bool:
        """True if a majority has agreed."""
        return self.yes >= self._quorum

    @property
    def denied(self) -> bool:
        """True if so many nodes do not agree that there can be no majority."""
        return len(self.no) > self._nodes - self._quorum

    def hurry(self) -> None:
        """Decide as soon as the outcome is certain, from now on."""
        self._patient = False
        self._look()

    def _look(self) -> None:
        if self._over:
            return
        certain = self.agreed or self.denied
        if (certain and not self._patient) or self.yes + len(self.no) + len(self.failures) == self._nodes:
            self._over = True
            self._decided(self)

    def failure(self, name: str | bytes | None) -> WheelLockError:
        """Return the error to raise if too few nodes have answered."""
        first = self.failures[0]
        lock_type = type(first) if isinstance(first, WheelLockError) else WheelLockError
        answered = self._nodes - len(self.failures)
        error = lock_type(f"Only {answered} of {self._nodes} nodes answered: {first}", name)
        error.__cause__ = first
        return error
