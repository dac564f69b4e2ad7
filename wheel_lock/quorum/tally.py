"""What is asked of all nodes at once and decided by a majority of their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wheel_lock.engine.future import Future
from wheel_lock.errors import LockLost, WheelLockError


class VoteTally:
    """Answers of nodes, counted until a majority is certain. Timer's thread only.

    Args:
        nodes: How many nodes are asked.
        quorum: How many make a majority of all.
        decided: Called once, with this, when that is so.
        patient: Whether to wait for all answers although a majority is certain, until :meth:`hurry`.

    Attributes:
        yes: How many have agreed.
        no: The answers of the others.
        failures: Of those that could not be asked, or did not answer.
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
        """Return what one node's answer is to complete.

        Args:
            read: Whether the answer agrees.
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
        """A node does not agree."""
        self.no.append(why)
        self._look()

    def failed(self, error: Exception) -> None:
        """A node could not be asked, or did not answer."""
        self.failures.append(error)
        self._look()

    @property
    def agreed(self) -> bool:
        """Whether a majority has agreed."""
        return self.yes >= self._quorum

    @property
    def denied(self) -> bool:
        """Whether so many do not agree that there can be no majority."""
        return len(self.no) > self._nodes - self._quorum

    def hurry(self) -> None:
        """Wait for a majority only, from now on."""
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
        """Return what to tell a caller where too few have answered."""
        first = self.failures[0]
        lock_type = type(first) if isinstance(first, WheelLockError) else WheelLockError
        answered = self._nodes - len(self.failures)
        error = lock_type(f"Only {answered} of {self._nodes} nodes answered: {first}", name)
        error.__cause__ = first
        return error
