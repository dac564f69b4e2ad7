"""APScheduler: every process has the scheduler, and the jobs run in the one that holds a lock."""

from __future__ import annotations

import logging
import threading

from apscheduler.schedulers.base import BaseScheduler

from wheel_lock import LockContext, LockNotAcquired, LostEvent, WheelLockError

RETRY_S = 1.0
logger = logging.getLogger(__name__)


class OneScheduler:
    """Runs the jobs of ``scheduler`` while this process holds the lock ``name``; another takes over when it ends.

    Args:
        timeout: Seconds after which another process takes over if this one crashes.
    """

    def __init__(
        self, context: LockContext, scheduler: BaseScheduler, name: str = "scheduler", timeout: float = 10.0
    ) -> None:
        self._context = context
        self._scheduler = scheduler
        self._name = name
        self._timeout_s = timeout
        self._stopping = False
        self._changed = threading.Event()  # the lock is lost, or this is to stop
        self._thread = threading.Thread(target=self._run, name="one-scheduler", daemon=True)

    def start(self) -> None:
        """Start the scheduler without its jobs, and wait for the lock in a thread."""
        self._scheduler.start(paused=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for the jobs that run, shut the scheduler down, and let another process take over."""
        self._stopping = True
        self._changed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._changed.clear()
            try:
                with self._context.lock(self._name, self._timeout_s, blocking_timeout=1.0, on_lost=self._lost):
                    self._run_jobs()
            except LockNotAcquired:
                pass  # another process runs the jobs
            except WheelLockError as error:  # lost, or the server is away
                logger.warning("the scheduler is paused: %s", error)
                self._changed.wait(RETRY_S)
        if self._scheduler.running:
            self._scheduler.shutdown()

    def _lost(self, event: LostEvent) -> None:
        self._changed.set()

    def _run_jobs(self) -> None:
        self._scheduler.resume()
        if not self._stopping:
            self._changed.wait()
        self._scheduler.pause()
        if self._stopping:
            self._scheduler.shutdown(wait=True)
