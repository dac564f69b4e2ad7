"""The command ``run``: its arguments, the validation of these, acquire and release."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Annotated

import typer

from wheel_lock import Lock, LockLost, WheelLockError
from wheel_lock.cli import output, server
from wheel_lock.cli.arguments import USAGE, RedisUrl, Refusal, checked, seconds_option
from wheel_lock.cli.run.acquiring import Acquiring
from wheel_lock.cli.run.signals import Signals
from wheel_lock.cli.run.supervisor import LOST, Plan, Supervisor
from wheel_lock.options import MAX_OWNER_LENGTH, LockOptions, lock_name, lock_options, process_owner
from wheel_lock.runtime.notifier import NOTIFIER

_MARGIN = 1 / 6  # default margin, as a share of the timeout


def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.")],
    command: Annotated[list[str], typer.Argument(metavar="-- CMD [ARG]...", help="The program and its arguments.")],
    redis: RedisUrl,
    timeout: Annotated[
        float, seconds_option("timeout", "The time-to-live of the lock, which is renewed every third of it.")
    ] = 30.0,
    wait: Annotated[
        float | None, seconds_option("wait", "How long to wait for the lock; 0 for one attempt. Without it, for ever.")
    ] = None,
    margin: Annotated[
        float | None,
        seconds_option(
            "margin",
            "How long before the lease ends CMD is signalled if no renewal is confirmed; a sixth of --timeout.",
        ),
    ] = None,
    grace: Annotated[float, seconds_option("grace", "How long after that signal CMD is killed.")] = 5.0,
    signal_name: Annotated[
        str, typer.Option("--signal", metavar="NAME", help="The signal that CMD gets when the lock is lost.")
    ] = "TERM",
    fence_env: Annotated[
        str | None,
        typer.Option(metavar="VAR", help="An environment variable of CMD for the fence, a number that only grows."),
    ] = None,
) -> None:
    """Run a command while a lock is held, and release the lock when it has ended.

    Signals (INT, TERM, HUP, QUIT, USR1, USR2, WINCH, TSTP, CONT) are sent on to CMD and all that it has started. If the
    lock is lost, or cannot be renewed in time, CMD gets --signal, and SIGKILL after --grace. So does what CMD has started
    and leaves behind, in its process group, before the lock is released; and CMD, on Linux, if wheel-lock itself is killed:
    the lock expires then. While wheel-lock is stopped, CMD goes on, and the lock expires.

    Ends with the status of CMD, 128 + n if signal n has ended it; 75 if the lock was not acquired within --wait; 76 if it
    was lost while CMD ran; 126 if CMD cannot be executed, 127 if it is not found; 1 if the server is not there, refuses or
    fails before CMD is started, with a sentence on stderr (a failover by Sentinels is waited for); 2 if the command line is
    wrong; 128 + n if signal n has come before CMD was started.
    """
    options = _options(name, timeout, fence_env)
    plan = Plan(command, os.environ, _margin_s(margin, options), grace, _signal(signal_name))
    _open_standard_streams()
    raise typer.Exit(_run(name, options, wait, fence_env, plan, redis))


def _run(name: str, options: LockOptions, wait_s: float | None, fence_env: str | None, plan: Plan, url: str) -> int:
    """Run the command of a plan while the lock is held; return the exit status.

    Args:
        wait_s: How long to wait for the lock, in seconds; None for ever.
        fence_env: The environment variable for the fence, if any.

    Raises:
        Refusal: The command was not started. Nothing is held.
    """
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        stack.enter_context(output.messages(math.inf))
        acquiring = Acquiring(name, url, options, _owner(plan.command), wait_s, signals, _say)
        lock = stack.enter_context(closing(acquiring)).lock()
        if fence_env is not None:
            plan = replace(plan, environment={**plan.environment, fence_env: str(lock.fence)})
        try:
            status = Supervisor(lock, plan, signals, _say).run()
        except Refusal:
            _release(lock, 0)
            raise
        # After a loss the context releases it, if it is not lost after all and the server is there.
        return status if status == LOST else _release(lock, status)


def _say(sentence: str) -> None:
    NOTIFIER.post(output.complain, sentence)


def _owner(command: Sequence[str]) -> str:
    """Return the owner of the lock: host, process and program."""
    program = os.path.basename(command[0])
    shown = "".join(character for character in program if character.isascii() and character.isprintable())
    return f"{process_owner()}:{shown}"[:MAX_OWNER_LENGTH]


def _release(lock: Lock, status: int) -> int:
    """Release the lock; return the exit status, which is ``status`` unless the lock turns out to be lost."""
    try:
        lock.release()
    except LockLost as error:
        output.complain(f"the lock was lost before the command ended ({error.reason})")
        return LOST
    except WheelLockError as error:
        output.complain(f"the lock is not released, it expires within {lock.timeout:g} s: {server.one_line(error)}")
    return status


def _options(name: str, timeout: float, fence_env: str | None) -> LockOptions:
    if fence_env is not None and re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", fence_env) is None:
        raise Refusal(f"--fence-env must be the name of a variable, not {fence_env!r}", USAGE)
    with checked("NAME: "):
        lock_name(name, b"")
    with checked("--"):
        return lock_options(timeout, fencing=fence_env is not None)


def _margin_s(margin: float | None, options: LockOptions) -> float:
    margin_s = options.timeout_s * _MARGIN if margin is None else margin
    most_s = options.timeout_s / 2  # a third of the timeout passes between renewals
    with checked("--"):
        if margin_s > most_s:
            raise ValueError(f"margin must be at most half of the timeout, {most_s:g} s, not {margin_s:g}")
    return margin_s


def _signal(name: str) -> signal.Signals:
    try:
        if name.isdecimal():
            return signal.Signals(int(name))
        return signal.Signals[name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"]
    except (KeyError, ValueError):
        raise Refusal(f"--signal must be a signal such as TERM or INT, not {name!r}", USAGE) from None


def _open_standard_streams() -> None:
    """Open /dev/null for standard streams that are closed, or connections would get their numbers and messages."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(opened, True)
