"""The health of a context: a frozen report for readiness probes, and the rules for `ok`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

LATE_S = 1.0  # threshold for the timer's thread, and for the confirmation of a renewal


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The health of one node, as :class:`Health` contains it.

    Attributes:
        node: The address.
        connected: True if there is a connection, and it answers.
        overdue: Leases with a renewal that is due there and not confirmed.
        last_confirmation_age_s: Seconds since a grant or a renewal was last confirmed there; None if none has been.
        trouble: Why the node cannot be used, as one sentence; None if it can, or has not been used yet.
    """

    node: str
    connected: bool
    overdue: int
    last_confirmation_age_s: float | None
    trouble: str | None


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a context at one moment; see :meth:`wheel_lock.LockContext.health`.

    Attributes:
        ok: True if locks can be acquired and are kept alive, as far as is known without asking a server.
        reasons: Why ``ok`` is False, one sentence each; empty if it is True.
        nodes: The nodes.
        held: Locks held.
        waiting: Callers waiting.
        overdue: Leases with a renewal that is due and not confirmed.
        overdue_most: The most leases of one node that were overdue at once since the context was made.
        longest_wait_s: Seconds for which the longest of the waiting callers has been waiting; 0 without any.
        last_confirmation_age_s: Seconds since a node last confirmed a grant or a renewal; None if none has.
        timer_late_s: Seconds for which the timer's thread has been due to work; above a second it is kept from running.
        watching: True if losses are pushed by the server.
    """

    ok: bool
    reasons: tuple[str, ...]
    nodes: tuple[NodeHealth, ...]
    held: int
    waiting: int
    overdue: int
    overdue_most: int
    longest_wait_s: float
    last_confirmation_age_s: float | None
    timer_late_s: float
    watching: bool

    def as_dict(self) -> dict[str, object]:
        """Return the fields as plain dicts, lists and numbers, for JSON."""
        return {**asdict(self), "reasons": list(self.reasons), "nodes": [asdict(node) for node in self.nodes]}


def assess(nodes: Sequence[NodeHealth], *, needed: int | None, closed: bool, stopped: bool, late_s: float) -> list[str]:
    """Return the reasons why locks cannot be acquired or kept alive, one sentence each; empty if there are none.

    Args:
        needed: How many of the nodes must work: the majority of a quorum; None for all.
        stopped: True if the timer of the context is stopped.
        late_s: Seconds for which the timer's thread has been due to work.
    """
    if closed:
        return ["the context is closed"]
    if stopped:
        return ["the timer is stopped"]
    reasons = []
    if late_s > LATE_S:
        reasons.append(f"the timer's thread is {late_s:.1f} s late")
    troubles = [f"{node.node}: {node.trouble}" for node in nodes if node.trouble is not None]
    if needed is not None and len(nodes) - len(troubles) >= needed:
        troubles = []
    return reasons + troubles
