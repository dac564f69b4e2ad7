"""What can be seen of a running context: frozen snapshots and events."""

from wheel_lock.observe.events import HeldLock, LostEvent
from wheel_lock.observe.stats import ContextStats

__all__ = ["ContextStats", "HeldLock", "LostEvent"]
