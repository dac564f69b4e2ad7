"""Which engines may have a direct path."""

from __future__ import annotations

import select
import sys

from wheel_lock.engine.state import EngineState
from wheel_lock.runtime.clock import SystemClock

_LONGEST_TICK_S = 0.02  # longer ones would make the looks late

# Of exactly one interpreter lock it is known when threads change. A free-threaded build has none, or one that comes and
# goes with the import of an extension module (sys._is_gil_enabled): the build decides, whatever the moment.
_FREE_THREADED = "t" in getattr(sys, "abiflags", "")
_SYSTEM_HAS_IT: bool = hasattr(select, "poll") and sys.implementation.name == "cpython" and not _FREE_THREADED


def fits(engine: EngineState) -> bool:
    """Return whether an engine of one server may have a direct path: nothing must see each grant at once."""
    options = engine.options
    counted = options.max_held is not None or options.min_replicas > 0
    watched = options.watch or options.declare_keys
    real = engine.timer.threaded and isinstance(engine.timer.clock, SystemClock)  # a caller waits in real time
    quick = engine.timer.scale.tick_s <= _LONGEST_TICK_S
    return not (counted or watched) and real and quick and _SYSTEM_HAS_IT
