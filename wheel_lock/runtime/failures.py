"""What a failure of the library's own code costs: what it was about, and nothing else.

Whatever the timer's thread calls belongs to a failure domain: a request, a node, an engine. An exception that leaves such
a call has left something half done, and only its domain is in doubt. The domain ends what it keeps, with a reason; the
thread and all other domains go on. A domain that fails while it does so hands over to the one above it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from wheel_lock.runtime.notifier import NOTIFIER

logger = logging.getLogger("wheel_lock")


class FailureDomain(Protocol):
    """What is in doubt after a failure in a call that was made for it."""

    @property
    def above(self) -> FailureDomain | None:
        """What is in doubt if ``crashed`` fails, too; None where that is all."""
        ...

    def crashed(self, error: Exception) -> None:
        """End whatever the failure may have left half done. Called once per failure, on the timer's thread."""
        ...


def guarded(domain: FailureDomain | None, call: Callable[..., object], *arguments: object) -> None:
    """Call ``call(*arguments)``; an exception is logged and costs ``domain``, nothing where that is None."""
    try:
        call(*arguments)
    except Exception as error:
        contain(domain, call, error)


def contain(domain: FailureDomain | None, call: Callable[..., object], error: Exception) -> None:
    """Log the ``error`` of a call with its stack, and have ``domain`` end what is in doubt."""
    contain_all((domain,), call, error)


def contain_all(domains: Iterable[FailureDomain | None], call: Callable[..., object], error: Exception) -> None:
    """Log the ``error`` of a call that was made for several domains, and have each end what is in doubt."""
    NOTIFIER.post(log_failure, call, error)
    for domain in domains:
        if domain is not None:
            guarded(domain.above, domain.crashed, error)


def log_failure(call: Callable[..., object], error: BaseException) -> None:
    """Log a failure and its stack. On the notifier thread."""
    logger.error("the timer's thread survived a failure in %r", call, exc_info=error)
