"""Who hands over to whom: threads, tasks, processes. Whoever else wants the lock waits, and one adopter is enough."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from tests.support.backend import Backend
from tests.support.background import Background, in_thread
from tests.support.waiting import eventually
from wheel_lock import ContextClosed, Lock, LockContext, LockLost, WrongThread

pytestmark = pytest.mark.servers("real")

NAME = "import:2026"
ROOT = Path(__file__).parents[2]


# Who adopts


def test_a_thread_adopts_for_itself_unless_it_is_told_otherwise(context: LockContext, lock: Lock) -> None:
    text = lock.export()
    adopted = in_thread(lambda: context.adopt(text, thread_local=False))
    text = adopted.export()  # any thread may: it belongs to none
    adopted = in_thread(lambda: context.adopt(text))
    with pytest.raises(WrongThread):
        adopted.release()


def test_threads_and_tasks_hand_over_to_each_other(backend: Backend, context: LockContext, lock: Lock) -> None:
    fence = lock.fence
    tasks = backend.context().asyncio

    async def pass_on(text: str) -> str:
        in_task = await tasks.adopt(text)
        assert in_task.is_held
        in_task = await tasks.adopt(await in_task.export(), thread_local=False)
        assert in_task.fence == fence
        return await in_task.export()

    with context.adopt(asyncio.run(pass_on(lock.export()))) as adopted:
        assert adopted.fence == fence


class Adopter:
    """Another process that is ready to adopt, see adopter.py."""

    def __init__(self, backend: Backend) -> None:
        command = [sys.executable, "-W", "error", "-m", "tests.redis.adopter"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell(backend.url)
        assert self.said() == "False"

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


def test_another_process_adopts(real: Backend) -> None:
    context = real.context()
    with Adopter(real) as adopter:
        lock = context.lock(NAME, timeout=3.0, renew_every=0.4, fencing=True)
        lock.acquire()
        waiter = Background(context.lock(NAME, thread_local=False).acquire)
        adopter.tell(lock.export())
        assert adopter.said() == f"True {lock.fence}"
        token = real.view.get(NAME)
        for _ in range(2):  # it is renewed there, and the first renewal is confirmed before the second
            eventually(lambda: real.view.pttl(NAME) < 2_750)
            eventually(lambda: real.view.pttl(NAME) > 2_750)
        assert real.view.get(NAME) == token
        assert not waiter.done
        adopter.tell("release it")
        held, renewals = adopter.said().split()
        assert held == "True"
        assert int(renewals) >= 1
        assert waiter.result()


# What an adoption needs


def test_a_closed_context_neither_exports_nor_adopts(backend: Backend, context: LockContext, lock: Lock) -> None:
    text, other = lock.export(), backend.context()
    kept = other.lock("kept")
    kept.acquire()
    other.close()
    with pytest.raises(ContextClosed):
        other.adopt(text)
    with pytest.raises(LockLost):
        kept.export()
    context.adopt(text).release()
