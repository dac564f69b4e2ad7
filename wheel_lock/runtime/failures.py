"""Failure domains: an exception in the library's own code ends the objects that it concerns, and no others.

Each call on the timer's thread belongs to a failure domain: a request, a node, an engine. An exception that leaves such a
call may have left the domain in an inconsistent state. The domain then ends all that it keeps, with a reason, because a
lease that nothing watches would be lost in silence; the thread and all other domains go on. If a domain fails in this, the
domain above it does the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from wheel_lock.runtime.notifier import NOTIFIER

logger: logging.Logger = logging.getLogger("wheel_lock")


class FailureDomain(Protocol):
    """A request, a node or an engine, whose state is in doubt after a failure of a call that was made for it."""

    @property
    def above(self) -> FailureDomain | None:
        """The domain that is in doubt if ``crashed`` fails, too; None if there is none."""

    def crashed(self, error: Exception) -> None:
        """End everything that the failure may have left inconsistent. Called once per failure, on the timer's thread."""


def guarded(domain: FailureDomain | None, call: Callable[..., object], *arguments: object) -> None:
    """Call ``call(*arguments)``. An exception is logged, and crashes ``domain`` unless that is None."""
    try:
        call(*arguments)
    except Exception as error:
        contain(domain, call, error)


def contain(domain: FailureDomain | None, call: Callable[..., object], error: Exception) -> None:
    """Log the ``error`` of a call, and crash ``domain`` unless that is None."""
    contain_all((domain,), call, error)


def contain_all(domains: Iterable[FailureDomain | None], call: Callable[..., object], error: Exception) -> None:
    """Log the ``error`` of a call that was made for several domains, and crash each of them."""
    NOTIFIER.post(log_failure, call, error)
    for domain in domains:
        if domain is not None:
            guarded(domain.above, domain.crashed, error)


def log_failure(call: Callable[..., object], error: BaseException) -> None:
    """Log a failure and its stack. On the notifier thread."""
    logger.error("the timer's thread survived a failure in %r", call, exc_info=error)
