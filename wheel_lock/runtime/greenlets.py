"""gevent: greenlets as owners of locks, gates on which they wait, and system threads beside them.

Each greenlet is an owner, as a thread is. It waits through the hub of its thread, so that other greenlets run meanwhile.
Without gevent each of these functions costs one lookup in ``sys.modules``; the package never imports gevent.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from sys import modules
from time import monotonic
from typing import Any, Protocol

from wheel_lock.forks import in_forked_child
from wheel_lock.lease import Owner
from wheel_lock.runtime.native import allocate_lock, begin, get_ident, sleep, start_new_thread, threads_are_patched
from wheel_lock.runtime.timer_threads import TIMER_THREADS, MustNotWait

_HUB_CHECK_S = 1.0
_EXIT_WAIT_S = 0.5
_EXIT_POLL_S = 0.002

_main_hub: weakref.ref[Any] | None = None  # None until it is known


@in_forked_child
def _after_fork() -> None:
    global _main_hub
    _main_hub = None  # the forking thread may have been another one
    _with_hubs.clear()


def _hub_here() -> Any:
    """Return the hub of the calling thread, or None if it has none yet."""
    hub_if_exists = getattr(modules.get("gevent._hub_local"), "get_hub_if_exists", None)
    return None if hub_if_exists is None else hub_if_exists()


# -- waiting ---------------------------------------------------------------------------------------------------------


class Gate(Protocol):
    """A lock that one caller waits for until another thread opens it, once."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait, at most ``timeout`` seconds unless that is negative; return whether the gate was opened."""

    def release(self) -> None:
        """Open the gate. From any thread; does not wait and does not raise."""


class _HubGate:
    """A gate that blocks only the calling greenlet."""

    __slots__ = ("_hub", "_open", "_waiter")

    def __init__(self, hub: Any) -> None:
        self._hub = hub
        self._open = False
        self._waiter: Any = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        loop = self._hub.loop
        self._waiter = waiter = modules["gevent.hub"].Waiter(self._hub)
        # A hub that watches nothing concludes that nothing will ever wake its greenlets.
        watcher = loop.timer(timeout) if timeout >= 0 else loop.async_()
        try:
            watcher.start(waiter.switch, None)
            if not self._open:  # checked after the waiter has been set
                waiter.get()
            return self._open
        finally:  # also if Timeout or GreenletExit is thrown into the greenlet
            watcher.close()

    def release(self) -> None:
        self._open = True
        waiter = self._waiter
        if waiter is not None:
            try:
                # Not through a watcher, which the greenlet may close at the same time. A waiter that has ended ignores it.
                self._hub.loop.run_callback_threadsafe(waiter.switch, None)
            except Exception:
                pass  # the hub has been destroyed together with its greenlets


def new_gate() -> Gate:
    """Return a closed gate for the calling thread or greenlet.

    Raises:
        MustNotWait: The caller runs on the thread of a timer.
    """
    global _main_hub
    if get_ident() in TIMER_THREADS:
        raise MustNotWait
    if "gevent" in modules:
        hub = _hub_here()
        if hub is None and threads_are_patched() and threading.get_native_id() == os.getpid():
            hub = modules["gevent"].get_hub()  # any wait in the main thread makes one, and callbacks run there
        # The hub itself cannot switch; code that it runs (a signal's handler, say) blocks it.
        if hub is not None and hub is not modules["greenlet"].getcurrent():
            if hub.main_hub and (_main_hub is None or _main_hub() is not hub):
                _main_hub = weakref.ref(hub)
            return _HubGate(hub)
    gate = allocate_lock()
    gate.acquire()
    return gate


# -- owners ----------------------------------------------------------------------------------------------------------


class GreenletOwner(Owner):
    """A greenlet as the owner of leases, which end with it."""

    __slots__ = ("_greenlet",)

    def __init__(self, greenlet: Any) -> None:
        self._greenlet = weakref.ref(greenlet)  # weak, because a held lease keeps its owner
        self.holds: dict[Any, Any] | None = None

    @property
    def ended(self) -> bool:
        greenlet = self._greenlet()
        return greenlet is None or greenlet.dead


_owners: weakref.WeakKeyDictionary[Any, GreenletOwner] = weakref.WeakKeyDictionary()


def greenlet_owner() -> Owner | None:
    """Return the owner of the calling greenlet; None outside of greenlets."""
    if "gevent" not in modules:
        return None
    greenlet = modules["greenlet"].getcurrent()
    if greenlet.parent is None:
        return None  # the root greenlet of a thread
    owner = _owners.get(greenlet)
    if owner is None:
        owner = _owners[greenlet] = GreenletOwner(greenlet)
    return owner


# -- system threads --------------------------------------------------------------------------------------------------


class SystemThread(Protocol):
    """The part of ``threading.Thread`` that the package uses."""

    @property
    def ident(self) -> int | None: ...
    def start(self) -> None: ...
    def is_alive(self) -> bool: ...
    def join(self, timeout: float | None = None) -> None: ...


class _UnpatchedThread:
    """A daemon thread of the system, for programs in which ``threading.Thread`` makes greenlets."""

    def __init__(self, target: Callable[[], object], name: str) -> None:
        self.name = name
        self.ident: int | None = None
        self._target = target
        self._alive = False
        self._joining: list[Gate] = []

    def start(self) -> None:
        self._alive = True
        try:
            start_new_thread(begin, (self.run,))
        except BaseException:
            self._alive = False
            raise

    def run(self) -> None:
        self.ident = get_ident()
        threading.current_thread().name = self.name  # for log records
        try:
            self._target()
            hub = _hub_here()
            if hub is not None:  # made by a wait through gevent, such as that of a connecting socket
                modules["gevent"].sleep(0)  # lets the hub close what it closes one iteration later
                hub.destroy(True)
        finally:
            self._alive = False
            for gate in self._joining:
                gate.release()

    def is_alive(self) -> bool:
        return self._alive

    def join(self, timeout: float | None = None) -> None:
        gate = new_gate()
        self._joining.append(gate)
        if self._alive:
            gate.acquire(timeout=-1 if timeout is None else timeout)


def _run(target: Callable[[], object]) -> None:
    target()
    if threads_are_patched():  # while it ran, so that the thread has another identity now
        threading.current_thread()  # registers that identity, so that it can be deleted when the thread ends


def new_thread(target: Callable[[], object], name: str) -> SystemThread:
    """Return a daemon thread of the system, not yet started."""
    if threads_are_patched():
        return _UnpatchedThread(target, name)
    return threading.Thread(target=_run, args=(target,), name=name, daemon=True)


def start_helper_thread(target: Callable[[], object]) -> None:
    """Run ``target()``, such as one attempt to connect, on a daemon thread of the system, without waiting for its start.

    Raises:
        RuntimeError: The system cannot start a thread.
    """
    start_new_thread(begin, (_start, target, "wheel-lock-connect"))  # because threading.Thread.start() waits


_with_hubs: set[_UnpatchedThread] = set()  # short-lived threads that may wait through gevent


def _start(target: Callable[[], object], name: str) -> None:
    if threads_are_patched():
        unpatched = _UnpatchedThread(target, name)
        _with_hubs.add(unpatched)
        try:
            unpatched.run()
        finally:
            _with_hubs.discard(unpatched)
        return
    thread = new_thread(target, name)
    try:
        thread.start()
    except RuntimeError:
        target()  # the system cannot start a second thread; this one does the work


@atexit.register
def _at_exit() -> None:
    """Wait up to half a second for threads with hubs.

    A thread that wakes up during the end of the interpreter is terminated in the middle of its stack, which crashes the
    process if greenlets have stacks in that thread.
    """
    until = monotonic() + _EXIT_WAIT_S
    while _with_hubs and monotonic() < until:
        sleep(_EXIT_POLL_S)


def run_among_greenlets(call: Callable[[], object]) -> None:
    """Call ``call()``, which may take locks that gevent has patched: a log record, or a user's callback.

    gevent's locks are not safe between threads: a greenlet that waits for one which another thread holds may never be
    woken. So the call, which must not raise, runs in a greenlet of the main thread, if that has a hub, and is waited for.
    """
    hub = _main_hub() if _main_hub is not None and threads_are_patched() else None
    if hub is None or hub.loop is None:
        call()
        return
    done = allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            call()
        finally:
            done.release()

    hub.loop.run_callback_threadsafe(modules["gevent"].spawn, run)
    while not done.acquire(timeout=_HUB_CHECK_S) and hub.loop is not None:
        pass  # another greenlet keeps the hub from running
