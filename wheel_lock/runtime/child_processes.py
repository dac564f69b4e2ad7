"""The end of a child process of multiprocessing, which Python ends without calling the functions of ``atexit``."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

_LAST = -100  # the priority: after what multiprocessing and its queues do at the end of a child

_calls: list[Callable[[], object]] = []
_noted = 0  # the process for which the calls have been handed to multiprocessing


def at_end(call: Callable[[], object]) -> None:
    """Have ``call()`` run when a child of multiprocessing that has had a timer's thread ends, unless it is killed."""
    _calls.append(call)


def note_start() -> None:
    """Hand the calls to multiprocessing if this process is one of its children. Called when a timer's thread is started.

    Not earlier: a child forgets what was handed over before its first action, by its parent or by a handler of forks.
    """
    global _noted
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None or _noted == os.getpid():
        return
    _noted = os.getpid()
    from multiprocessing.util import Finalize  # is imported in each child

    Finalize(None, _run, exitpriority=_LAST)


def _run() -> None:
    """Make the calls when all threads have ended for whose end Python waits: they may hold locks."""
    if _others():
        threading.Thread(target=_run_after).start()  # Python waits for the end of this one, too
    else:
        _run_after()


def _others() -> list[threading.Thread]:
    """Return the threads for whose end Python waits, but for the main thread, which waits, and this one."""
    own = threading.current_thread(), threading.main_thread()
    return [thread for thread in threading.enumerate() if thread not in own and not thread.daemon]


def _run_after() -> None:
    while others := _others():  # one of them may have started another
        for thread in others:
            thread.join()
    for call in _calls:
        call()
