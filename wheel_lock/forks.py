"""The first actions of the package in a forked child, where its threads are gone and its locks may be taken for ever."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from wheel_lock.runtime.interruptions import insist

Call = TypeVar("Call", bound=Callable[[], object])


def in_forked_child(call: Call) -> Call:
    """Have ``call()`` run first in each forked child, in the order of these calls; return it. For decorators, too.

    It may be repeated: the interpreter prints what a signal's handler raises in it, and goes on with the program.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(insist, operator.call, call))
    return call
