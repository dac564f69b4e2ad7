"""Observation of running contexts: snapshots, health and events, which are frozen values, and the exporters.

The exporters, ``wheel_lock.observe.prometheus`` and ``wheel_lock.observe.opentelemetry``, need packages of the extras with
these names, so they are imported by users only.
"""

from wheel_lock.observe.events import HeldLock, LostEvent
from wheel_lock.observe.health import Health, NodeHealth
from wheel_lock.observe.stats import ContextStats

__all__ = ["ContextStats", "Health", "HeldLock", "LostEvent", "NodeHealth"]
