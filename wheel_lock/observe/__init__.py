"""Snapshots and events of a running context: frozen values."""

from wheel_lock.observe.events import HeldLock, LostEvent
from wheel_lock.observe.stats import ContextStats

__all__ = ["ContextStats", "HeldLock", "LostEvent"]
