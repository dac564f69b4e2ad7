"""The acquire of ``wheel-lock run``, on a thread of its own: the main thread waits for its end and for signals together."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TypeVar

from wheel_lock import Lock, LockContext, LockUnavailable, WheelLockError
from wheel_lock.cli import server, target
from wheel_lock.cli.arguments import Refusal
from wheel_lock.cli.run.signals import ENDING, Signals
from wheel_lock.errors import quoted
from wheel_lock.holder import Holder
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import LONG_TEXT, error_text

NOT_ACQUIRED = 75

_CLOSE_S = 1.0  # time limit for releases after an interruption or a loss
_QUIET_S = 1.0  # a shorter wait is not reported
_AGAIN_S = 0.25  # interval of attempts to find a master, while Sentinels elect one
_LATE_S = 0.25  # time for the message of an acquire whose limit has passed

Part = TypeVar("Part", bound="target.Target | LockContext")


class _Over(Exception):
    """The main thread no longer waits."""


@dataclass(eq=False)
class Acquiring:
    """One acquire, which :meth:`lock` begins, and :meth:`close` ends."""

    name: str
    url: str
    options: LockOptions
    owner: str  # for the token
    wait_s: float | None  # how long to wait; 0 for one attempt, None for ever
    signals: Signals  # what the main thread waits for
    say: Callable[[str], None]  # shows a sentence, and never blocks

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.wait_s if self.wait_s else math.inf
        self._parts: list[target.Target | LockContext] = []
        self._over = threading.Event()
        self._acquired: Future[Lock] = Future()
        self._contending: Lock | None = None  # the lock, once its server is known
        self._trouble: str | None = None  # why there is no such server yet

    def close(self) -> None:
        """Give up, or release, what is left of it."""
        self._over.set()
        self._close_parts()

    # -- the main thread ---------------------------------------------------------------------------------------------

    def lock(self) -> Lock:
        """Return the lock when it is acquired.

        Raises:
            Refusal: It is not acquired, or a signal of ENDING has come.
        """
        server.parsed(self.url)  # a mistake in it needs no thread
        _start(self._acquire)
        worth_a_message = time.monotonic() + _QUIET_S
        while not self._acquired.done():
            now = time.monotonic()
            if now >= self._until + _LATE_S:
                raise self._late()
            for number in self.signals.wait(min(self._until + _LATE_S, worth_a_message) - now):
                if number in ENDING:
                    ended = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
                    raise Refusal(ended, 128 + number)
            if time.monotonic() >= worth_a_message:
                known = self._contending is not None or self._trouble is not None
                worth_a_message = math.inf if known else now + _QUIET_S
                _start(self._say_what_it_waits_for)
        return self._acquired.result()

    def _late(self) -> Refusal:
        """Return the refusal for an acquire that takes longer than its limit: a server, or a Sentinel, is silent."""
        waited = f"waited {self.wait_s:g} s"
        if self._contending is None:
            return Refusal(f"{self._trouble or 'the server has not answered'}; {waited}")
        return Refusal(f"the lock {quoted(self.name)} is not acquired; {waited}", NOT_ACQUIRED)

    # -- other threads -----------------------------------------------------------------------------------------------

    def _acquire(self) -> None:
        try:
            self._acquired.set_result(self._acquired_lock())
        except BaseException as error:
            self._acquired.set_exception(error)
        self.signals.wake()

    def _acquired_lock(self) -> Lock:
        found = self._kept(self._found())
        context = self._kept(
            server.context_of(
                found.client,
                owner=self.owner,
                readable_owner=True,
                watch=True,
                close_timeout=_CLOSE_S,
                release_on_crash=False,  # a keeper would not wait until the guard has ended the command
            )
        )
        lock = context.lock(
            self.name,
            self.options.timeout_s,
            fencing=self.options.fencing,
            thread_local=False,
            on_lost=lambda event: self.signals.wake(),
        )
        self._contending = lock
        while True:
            left_s = self._left_s()
            try:
                acquired = lock.acquire(
                    blocking=self.wait_s != 0, blocking_timeout=None if left_s == math.inf else left_s
                )
                break
            except WheelLockError as error:
                sentence = f"cannot acquire the lock {quoted(lock.name)} on {found.address}: {server.one_line(error)}"
                passing = found.kind == "sentinel" and isinstance(error, LockUnavailable)
                if not passing or not self._again():
                    raise Refusal(sentence) from None
        if not acquired:
            waited = f"; waited {self.wait_s:g} s" if self.wait_s else ""
            holder = _holder(lock)
            shown = "another owner" if holder is None else error_text(holder, LONG_TEXT)
            raise Refusal(f"the lock {quoted(lock.name)} is held by {shown}{waited}", NOT_ACQUIRED)
        return lock

    def _found(self) -> target.Target:
        """Return the server; wait for Sentinels to choose a master."""
        while True:
            try:
                return target.find(self.url)
            except target.NoMaster as trouble:
                self._trouble = trouble.sentence
                if not self._again():
                    raise

    def _again(self) -> bool:
        """Return whether there is time for another attempt, after a pause."""
        return self.wait_s != 0 and not self._over.wait(min(_AGAIN_S, self._left_s())) and self._left_s() > 0

    def _left_s(self) -> float:
        return max(self._until - time.monotonic(), 0.0)

    def _kept(self, part: Part) -> Part:
        """Have :meth:`close` close a part, and return it. If that has been called, this thread closes it."""
        self._parts.append(part)
        if self._over.is_set():  # read behind the append, as close() sets it before it reads the parts
            self._close_parts()
            raise _Over
        return part

    def _close_parts(self) -> None:
        """Close the parts, the latest first. Both threads may do so: what is closed stays closed."""
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(closing(part))

    def _say_what_it_waits_for(self) -> None:
        lock = self._contending
        if lock is None:
            if self._trouble is not None:
                self.say(f"waiting for a master: {self._trouble}")
            return
        holder = _holder(lock)
        if holder is not None and not self._acquired.done():
            who = f"the owner of token {holder.token_id}" if holder.owner is None else holder.owner
            self.say(f"waiting for {quoted(lock.name)}, held by {error_text(who, LONG_TEXT)}")


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="wheel-lock-run", daemon=True).start()


def _holder(lock: Lock) -> Holder | None:
    """Return the holder of a lock that is not acquired; None if the server does not say it."""
    try:
        return lock.holder()
    except WheelLockError:
        return None
