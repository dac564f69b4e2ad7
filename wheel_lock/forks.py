"""The first actions of the package in a forked child, where its threads are gone and its locks may be taken for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

Call = TypeVar("Call", bound=Callable[[], object])


def in_forked_child(call: Call) -> Call:
    """Have ``call()`` run first in each forked child, in the order of these calls; return it. For decorators, too."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
    return call
