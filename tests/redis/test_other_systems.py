"""What other systems lack: without it the library imports, locks, renews, waits and releases, for threads and for tasks.

Each case takes names of Linux away before anything is imported. That says nothing about what another system does with the
calls that it has.
"""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace

import pytest

from tests.support.programs import run_python
from tests.support.redis_server import RedisServer
from wheel_lock.cli import main

ABSENT = {
    # The pair first: the module socket defines another one when it is imported without it.
    "unix sockets": ["_socket.socketpair", "socket.AF_UNIX", "os.geteuid", "fcntl"],
    "epoll": ["select.epoll"],
    "eventfd": ["os.eventfd"],
    "sendmsg": ["socket.socket.sendmsg"],
    "fork": ["os.fork", "os.register_at_fork"],
    "signals": ["signal.set_wakeup_fd", "signal.pthread_sigmask", "signal.SIGHUP", "signal.SIGUSR1", "resource"],
    "clocks": ["time.CLOCK_BOOTTIME", "time.pthread_getcpuclockid"],
    "calls of the system": ["ctypes"],
}
ODD, EVEN = (list(chain(*[*ABSENT.values()][first::2])) for first in (0, 1))
AS_ON_MACOS = [*ABSENT["epoll"], *ABSENT["eventfd"], *ABSENT["clocks"], *ABSENT["calls of the system"]]
AS_ON_WINDOWS = [*chain(*ABSENT.values()), "select.poll", "time.clock_gettime"]

PROGRAM = """
import importlib, sys

def absent(object):
    raise AttributeError

*taken, port = sys.argv[1:]
modules = []
for path in taken:
    first, *names = path.split(".")
    if not names:
        modules.append(first)
        continue
    owner = importlib.import_module(first)
    for name in names[:-1]:
        owner = getattr(owner, name)
    if isinstance(owner, type):  # which inherits it
        setattr(owner, names[-1], property(absent))
    else:
        delattr(owner, names[-1])
import asyncio, threading, time
for module in modules:  # the standard library has imported what it needs of them
    sys.modules[module] = None

import redis
from wheel_lock import LockContext

def until(condition):
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)

async def tasks(context):
    lock = context.asyncio.lock("name", timeout=2.0, renew_every=0.1)
    async with lock:
        while not lock.renewals:
            await asyncio.sleep(0.01)
        assert lock.is_held and not await context.asyncio.lock("name").acquire(blocking=False)
        waiter = context.asyncio.lock("name")
        waiting = asyncio.create_task(waiter.acquire())
        while not context.stats().waiting:
            await asyncio.sleep(0.01)
    assert await waiting
    await waiter.release()

with redis.Redis(port=int(port)) as client, LockContext(client) as context:
    with context.lock("name", timeout=2.0, renew_every=0.1) as lock:
        until(lambda: lock.renewals)
        assert lock.is_held and not context.lock("name").acquire(blocking=False)
        waiter = context.lock("name", thread_local=False)
        waiting = threading.Thread(target=waiter.acquire)
        waiting.start()
        until(lambda: context.stats().waiting)
    waiting.join()
    waiter.release()
    asyncio.run(tasks(context))
    assert context.health().ok
    if "socket.AF_UNIX" in taken:
        try:
            context.serve_debug()
        except OSError as error:
            assert "no unix sockets" in str(error)
print("all of it")
"""


@pytest.mark.parametrize(
    "names", [ODD, EVEN, AS_ON_MACOS, AS_ON_WINDOWS], ids=["odd", "even", "as on macOS", "as on Windows"]
)
def test_what_linux_has_is_not_needed(redis_server: RedisServer, names: list[str]) -> None:
    assert run_python("-W", "error", "-c", PROGRAM, *names, str(redis_server.port)) == "all of it\n"


def test_the_command_line_says_where_it_does_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wheel_lock.cli.os", SimpleNamespace(name="nt"))
    assert main(["ls"]) == 2
    assert capsys.readouterr().err.startswith("wheel-lock: the command line needs a POSIX system")
