"""Interruptions while a lock is acquired, held on to and let go of: wherever they are raised, nothing stays held.

Each scene is played once for every place in the library at which the interpreter would run a signal's handler, and is
interrupted there.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.redis_lock.callers import ours
from tests.support.backend import LONG_S, Backend
from tests.support.interruptions import Interrupted, InterruptedTypeError, Interruption, at_every_place
from tests.support.lock_types import make
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, WheelLockError
from wheel_lock.quorum.context import QuorumContext
from wheel_lock.testing import settle

# An interruption of a finaliser is swallowed by the interpreter: then the program just goes on.
pytestmark = [
    pytest.mark.usefixtures("no_collection"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.servers("real"),
]

Scene = Callable[[Any, Interruption], Coroutine[Any, Any, object]]
Play = Callable[[LockContext, Interruption], object]
NAME = "order:42"
NAMES = [f"{NAME}:{number}" for number in range(3)]
TIMEOUT_S = 60.0  # long, so that what is left behind is seen
OF_THEIR_OWN = ("exclusive", "reentrant", "write", "multi")
"""The kinds whose methods have bodies of their own; the others have those of one of these."""


async def done(outcome: Any) -> Any:
    """Return what a call of either API comes to."""
    return await outcome if inspect.isawaitable(outcome) else outcome


class Block:
    """The block of a lock of either API."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    async def __aenter__(self) -> Any:
        lock = self._lock
        return await lock.__aenter__() if hasattr(lock, "__aenter__") else lock.__enter__()

    async def __aexit__(self, *exception: Any) -> Any:
        lock = self._lock
        return await lock.__aexit__(*exception) if hasattr(lock, "__aexit__") else lock.__exit__(*exception)


async def give_back(lock: Any) -> None:
    """Release what may be held still, as its caller would after any failure."""
    try:
        await done(lock.release())
    except WheelLockError:
        pass


def in_a_block(kind: str, **terms: Any) -> Scene:
    async def scene(face: Any, interruption: Interruption) -> None:
        lock = make(face, kind, NAME, timeout=TIMEOUT_S, **terms)
        interruption.begin()
        async with Block(lock):
            pass

    return scene


def by_hand(kind: str) -> Scene:
    async def scene(face: Any, interruption: Interruption) -> None:
        lock = make(face, kind, NAME, timeout=TIMEOUT_S)
        await done(lock.acquire())
        interruption.begin()
        await done(lock.release())

    return scene


async def nested(face: Any, interruption: Interruption) -> None:
    async with Block(face.reentrant_lock(NAME, TIMEOUT_S)):
        interruption.begin()
        for _ in range(2):
            async with Block(face.reentrant_lock(NAME, TIMEOUT_S)):
                pass


async def nested_by_hand(face: Any, interruption: Interruption) -> None:
    lock = face.reentrant_lock(NAME, TIMEOUT_S)
    async with Block(lock):
        await done(lock.acquire())
        interruption.begin()
        await done(lock.release())


async def reading_while_writing(face: Any, interruption: Interruption) -> None:
    lock = face.rw_lock(NAME, TIMEOUT_S)
    async with Block(lock.write()):
        interruption.begin()
        async with Block(lock.read()):
            pass


async def reading_on(face: Any, interruption: Interruption) -> None:
    lock = face.rw_lock(NAME, TIMEOUT_S)
    writer = lock.write()
    await done(writer.acquire())
    async with Block(lock.read()) as reader:
        interruption.begin()
        try:
            await done(writer.release())
        except Interrupted:
            interruption.end()
            eventually(lambda: reader.is_held, LONG_S, "whether it has stopped writing or not, it reads on")
            raise


async def downgraded(face: Any, interruption: Interruption) -> None:
    async with Block(face.rw_lock(NAME, TIMEOUT_S).write()) as writer:
        interruption.begin()
        reader = await done(writer.downgrade())
        await done(reader.release())


async def downgraded_by_hand(face: Any, interruption: Interruption) -> None:
    writer = face.rw_lock(NAME, TIMEOUT_S).write()
    await done(writer.acquire())
    interruption.begin()
    try:
        reader = await done(writer.downgrade())
    except Interrupted:
        interruption.end()
        if writer.count:
            await give_back(writer)
        raise
    await done(reader.release())


async def decorated(face: Any, interruption: Interruption) -> None:
    @face.locked(NAME, timeout=TIMEOUT_S)  # type: ignore[untyped-decorator]
    def work() -> None:
        interruption.begin()

    work()


def in_bulk(**terms: Any) -> Scene:
    async def scene(face: Any, interruption: Interruption) -> None:
        interruption.begin()
        locks = await done(face.acquire_many(NAMES, TIMEOUT_S, **terms))
        interruption.end()
        await done(face.release_many(locks.values()))

    return scene


def released_in_bulk(read: Callable[[Any], Any]) -> Scene:
    async def scene(face: Any, interruption: Interruption) -> None:
        locks = await done(face.acquire_many(NAMES, TIMEOUT_S))
        given = read(locks)  # reading them from the result is the caller's own code
        interruption.begin()
        await done(face.release_many(given))

    return scene


async def adopted(face: Any, interruption: Interruption) -> None:
    lock = face.lock(NAME, TIMEOUT_S)
    await done(lock.acquire())
    text = await done(lock.export())
    interruption.begin()
    try:
        await done((await done(face.adopt(text))).release())
    finally:
        interruption.end()
        try:
            await done((await done(face.adopt(text))).release())  # where the first attempt never began
        except WheelLockError:
            pass


async def exported(face: Any, interruption: Interruption) -> None:
    lock = face.lock(NAME, TIMEOUT_S)
    await done(lock.acquire())
    interruption.begin()
    try:
        text = await done(lock.export())
    except Interrupted:
        interruption.end()
        await give_back(lock)  # where it was not begun yet
        raise
    interruption.end()
    await done((await done(face.adopt(text))).release())


async def adopted_in_bulk(face: Any, interruption: Interruption) -> None:
    texts = await done(face.export_many((await done(face.acquire_many(NAMES, TIMEOUT_S))).values()))
    interruption.begin()
    try:
        await done(face.release_many((await done(face.adopt_many(texts.values()))).values()))
    finally:
        interruption.end()
        await done(face.release_many((await done(face.adopt_many(texts.values()))).values()))  # as above


async def exported_in_bulk(face: Any, interruption: Interruption) -> None:
    given = [*(await done(face.acquire_many(NAMES, TIMEOUT_S))).values()]
    interruption.begin()
    try:
        texts = await done(face.export_many(given))
    except Interrupted:
        interruption.end()
        for lock in given:
            await give_back(lock)
        raise
    interruption.end()
    await done(face.release_many((await done(face.adopt_many(texts.values()))).values()))


async def extended(face: Any, interruption: Interruption) -> None:
    async with Block(face.lock(NAME, TIMEOUT_S)) as lock:
        interruption.begin()
        await done(lock.extend(1.0))


async def led(face: Any, interruption: Interruption) -> None:
    interruption.begin()
    async with Block(face.leader(NAME, TIMEOUT_S)):
        pass


OF_BOTH: dict[str, Scene] = {
    **{f"{kind} in a block": in_a_block(kind) for kind in OF_THEIR_OWN},
    "exclusive by hand": by_hand("exclusive"),
    "nested": nested,
    "reading while writing": reading_while_writing,
    "reading on": reading_on,
    "downgraded": downgraded,
    "in bulk": in_bulk(),
    "released in bulk": released_in_bulk(lambda locks: locks.values()),
    "released from an iterator": released_in_bulk(lambda locks: iter([*locks.values()])),
    "adopted": adopted,
    "exported": exported,
    "led": led,
}
SCENES: dict[str, Scene] = {
    **OF_BOTH,
    **{f"{kind} by hand": by_hand(kind) for kind in OF_THEIR_OWN},
    "nested by hand": nested_by_hand,
    "downgraded by hand": downgraded_by_hand,
    "decorated": decorated,
    "in bulk with a wait": in_bulk(blocking=True),
    "in bulk with a wait, all or nothing": in_bulk(blocking=True, all_or_nothing=True),
    "adopted in bulk": adopted_in_bulk,
    "exported in bulk": exported_in_bulk,
    "extended": extended,
}
TASKS: dict[str, Scene] = {**OF_BOTH, "guarded": in_a_block("exclusive", cancel_on_lost=True)}


def as_thread(scene: Scene) -> Play:
    """Play a scene with the API of threads, which never suspends it."""

    def play(context: LockContext, interruption: Interruption) -> None:
        with pytest.raises(StopIteration):
            scene(context, interruption).send(None)

    return play


def keys_of(view: redis.Redis) -> list[bytes]:
    found: Any = view.keys()
    return list(found)


def nothing_is_left(context: LockContext | QuorumContext, view: redis.Redis, where: str) -> None:
    settle(context.timer)
    eventually(lambda: context.stats().held == 0, LONG_S, f"nothing is held, interrupted at {where}")
    eventually(
        lambda: all(b":fence:" in key for key in keys_of(view)), LONG_S, f"no key is left, interrupted at {where}"
    )


def as_task(runner: asyncio.Runner, scene: Scene) -> Play:
    """Play a scene with the API of tasks, in one loop for all times: with it what a task holds would end."""

    def play(context: LockContext, interruption: Interruption) -> None:
        async def main() -> None:
            async with asyncio.timeout(LONG_S):
                await scene(context.asyncio, interruption)

        runner.run(main())

    return play


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda loop, details: None)
        yield runner


def everywhere(play: Play, context: LockContext, *views: redis.Redis) -> None:
    play(context, Interruption(-1))  # what is done once is done
    places = 0
    for where in at_every_place(lambda interruption: play(context, interruption)):
        for view in views:
            nothing_is_left(context, view, where)
        play(context, Interruption(-1))  # nor does the caller's object still count as held
        for view in views:
            nothing_is_left(context, view, where)
        places += 1
    assert places > 5


@pytest.mark.parametrize("scene", SCENES)
def test_an_interruption_anywhere_leaves_nothing_held(context: LockContext, real: Backend, scene: str) -> None:
    everywhere(as_thread(SCENES[scene]), context, real.view)


@pytest.mark.parametrize("scene", TASKS)
def test_nor_does_one_of_a_task(context: LockContext, real: Backend, runner: asyncio.Runner, scene: str) -> None:
    everywhere(as_task(runner, TASKS[scene]), context, real.view)


@pytest.mark.parametrize("kind", ["exclusive", "multi"])
def test_nor_does_one_of_a_lock_with_spans(context: LockContext, real: Backend, kind: str) -> None:
    tracers = pytest.importorskip("opentelemetry.trace")
    pytest.importorskip("wheel_lock.observe.opentelemetry").trace(context, tracers.NoOpTracer())
    everywhere(as_thread(in_a_block(kind)), context, real.view)


@pytest.mark.parametrize("kind", ["exclusive", "reentrant"])
def test_nor_does_one_of_a_lock_of_several_masters(real: Backend, kind: str) -> None:
    with ExitStack() as others:
        views = [real.view, *(others.enter_context(others.enter_context(RedisServer()).client()) for _ in range(2))]
        context: Any = others.enter_context(LockContext.quorum(views))
        everywhere(as_thread(in_a_block(kind)), context, *views)


def test_a_leader_whose_resignation_is_interrupted_leads_on_or_stands_again(
    context: LockContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wheel_lock.locks.leader._AFTER_RESIGNATION_S", 0.0)
    with context.leader(NAME, TIMEOUT_S) as leader:

        def resigned(interruption: Interruption) -> None:
            eventually(lambda: leader.is_leader, LONG_S)
            interruption.begin()
            leader.resign()

        for where in at_every_place(resigned):
            eventually(lambda: leader.is_leader, LONG_S, f"it leads again, interrupted at {where}")


def test_an_interrupted_release_leaves_what_another_thread_has_through_the_same_object(context: LockContext) -> None:
    permits = context.semaphore(NAME, 2, TIMEOUT_S)
    with ThreadPoolExecutor(1) as another:

        def released(interruption: Interruption) -> None:
            assert another.submit(permits.acquire).result()
            assert permits.acquire()
            interruption.begin()
            permits.release()

        for where in at_every_place(released):
            assert another.submit(permits.release).result(), where
            eventually(lambda: context.stats().held == 0, LONG_S, where)


@pytest.mark.parametrize("caller", ["thread", "task"])
def test_a_context_that_is_closed_in_spite_of_an_interruption(
    real: Backend, runner: asyncio.Runner, caller: str
) -> None:
    def closed_by_thread(interruption: Interruption) -> None:
        with LockContext(real.client()) as context:
            lock = context.lock(NAME, TIMEOUT_S)
            assert lock.acquire()
            interruption.begin()

    async def closed_by_task(interruption: Interruption) -> None:
        async with LockContext(real.client()).asyncio as context:
            lock = context.lock(NAME, TIMEOUT_S)
            assert await lock.acquire()
            interruption.begin()

    def closed(interruption: Interruption) -> None:
        closed_by_thread(interruption) if caller == "thread" else runner.run(closed_by_task(interruption))

    for where in at_every_place(closed):
        eventually(lambda: not keys_of(real.view), LONG_S, f"no key is left, interrupted at {where}")


def test_a_leader_whose_block_is_interrupted_anywhere_stands_no_more(context: LockContext, real: Backend) -> None:
    def led(interruption: Interruption) -> None:
        with context.leader(NAME, TIMEOUT_S) as leader:
            eventually(lambda: leader.is_leader)
            interruption.begin()

    for where in at_every_place(led):
        nothing_is_left(context, real.view, where)


def test_nor_does_one_whose_start_is_interrupted(
    context: LockContext, real: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        raise Interrupted

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    leader = context.leader(NAME, TIMEOUT_S)
    with pytest.raises(Interrupted):
        leader.start()
    eventually(lambda: not any(thread.name.startswith("leader of") for thread in threading.enumerate()), LONG_S)
    nothing_is_left(context, real.view, "its start")
    leader.close()


def test_nor_does_one_of_a_task_whose_block_is_interrupted(
    context: LockContext, real: Backend, runner: asyncio.Runner
) -> None:
    async def led(interruption: Interruption) -> None:
        async with context.asyncio.leader(NAME, TIMEOUT_S) as leader:
            while not leader.is_leader:
                await asyncio.sleep(0)
            interruption.begin()

    async def ended() -> None:
        async with asyncio.timeout(LONG_S):
            while context.stats().held:
                await asyncio.sleep(0.001)

    for where in at_every_place(lambda interruption: runner.run(led(interruption))):
        runner.run(ended())
        nothing_is_left(context, real.view, where)


def of_redis_pys(client: Any, way: str, **terms: Any) -> Scene:
    async def scene(face: Any, interruption: Interruption) -> None:
        lock = ours(client, name=NAME, **terms)
        if way == "by hand":
            await done(lock.acquire())
            interruption.begin()
            await done(lock.release())
            return
        if way == "in a block":
            interruption.begin()
        async with Block(lock):
            interruption.begin()

    return scene


@pytest.mark.parametrize("terms", [{}, {"timeout": TIMEOUT_S, "thread_local": False}], ids=str)
@pytest.mark.parametrize("way", ["in a block", "at the end of a block", "by hand"])
def test_nor_does_one_of_a_lock_of_redis_pys(real: Backend, way: str, terms: dict[str, Any]) -> None:
    with real.client() as client, LockContext.shared(client) as context:
        everywhere(as_thread(of_redis_pys(client, way, **terms)), context, real.view)


def test_nor_does_one_of_a_task_with_a_lock_of_redis_pys(real: Backend, runner: asyncio.Runner) -> None:
    client = redis.asyncio.Redis(port=real.port)
    with LockContext.shared(client) as context:
        everywhere(as_task(runner, of_redis_pys(client, "in a block", timeout=TIMEOUT_S)), context, real.view)


OTHERWISE: dict[str, dict[str, Any]] = {
    "twice": {"again_after": 0},
    "twice, later": {"again_after": 2},
    "by what looks like a misuse": {"error": InterruptedTypeError},
}


@pytest.mark.parametrize("how", OTHERWISE)
@pytest.mark.parametrize("scene", ["exclusive by hand", "nested by hand", "multi by hand", "released from an iterator"])
def test_nor_does_one_of_another_form(context: LockContext, real: Backend, scene: str, how: str) -> None:
    play = as_thread(SCENES[scene])
    for where in at_every_place(lambda interruption: play(context, interruption), **OTHERWISE[how]):
        nothing_is_left(context, real.view, where)
