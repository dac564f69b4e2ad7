"""Interruptions while a lock is acquired, held on to and let go of: whatever they strike, nothing stays held.

Each scene is played once for every place in the library at which the interpreter would run a signal's handler, and is
interrupted there.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.redis_lock.party import ours
from tests.support.backend import LONG_S, Backend, without_collection
from tests.support.interruptions import Interruption, Struck, StruckTypeError, at_every_place
from tests.support.lock_types import make
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, WheelLockError
from wheel_lock.quorum.context import QuorumContext
from wheel_lock.testing import settle

# An interruption that strikes a finaliser is swallowed by the interpreter: then the program just goes on.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.servers("real"),
]

Scene = Callable[[LockContext, Interruption], object]
TaskScene = Callable[[LockContext, Interruption], Coroutine[Any, Any, object]]
NAME = "order:42"
TIMEOUT_S = 60.0  # so what is left behind is there for long
OF_THEIR_OWN = ("exclusive", "reentrant", "write", "multi")
"""The kinds whose methods have bodies of their own; the others have those of one of these."""


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    with without_collection():
        yield


def in_a_block(kind: str) -> Scene:
    def scene(context: LockContext, interruption: Interruption) -> None:
        lock = make(context, kind, NAME, timeout=TIMEOUT_S)
        interruption.begin()
        with lock:
            pass

    return scene


def by_hand(kind: str) -> Scene:
    def scene(context: LockContext, interruption: Interruption) -> None:
        lock = make(context, kind, NAME, timeout=TIMEOUT_S)
        lock.acquire()
        interruption.begin()
        lock.release()

    return scene


def nested(context: LockContext, interruption: Interruption) -> None:
    with context.reentrant_lock(NAME, TIMEOUT_S):
        interruption.begin()
        with context.reentrant_lock(NAME, TIMEOUT_S):
            pass
        with context.reentrant_lock(NAME, TIMEOUT_S):
            pass


def nested_by_hand(context: LockContext, interruption: Interruption) -> None:
    lock = context.reentrant_lock(NAME, TIMEOUT_S)
    with lock:
        lock.acquire()
        interruption.begin()
        lock.release()


def reading_while_writing(context: LockContext, interruption: Interruption) -> None:
    lock = context.rw_lock(NAME, TIMEOUT_S)
    with lock.write():
        interruption.begin()
        with lock.read():
            pass


def reading_on(context: LockContext, interruption: Interruption) -> None:
    lock = context.rw_lock(NAME, TIMEOUT_S)
    writer, reader = lock.write(), lock.read()
    writer.acquire()
    with reader:
        interruption.begin()
        writer.release()


def downgraded(context: LockContext, interruption: Interruption) -> None:
    with context.rw_lock(NAME, TIMEOUT_S).write() as writer:
        interruption.begin()
        reader = writer.downgrade()
        try:
            pass
        finally:
            reader.release()


def downgraded_by_hand(context: LockContext, interruption: Interruption) -> None:
    writer = context.rw_lock(NAME, TIMEOUT_S).write()
    writer.acquire()
    interruption.begin()
    try:
        reader = writer.downgrade()
    except Struck:
        interruption.end()
        if writer.count:
            give_back(writer)  # which is the caller's to do, as after any failure
        raise
    reader.release()


def give_back(lock: Any) -> None:
    try:
        lock.release()
    except WheelLockError:
        pass


def decorated(context: LockContext, interruption: Interruption) -> None:
    @context.locked(NAME, timeout=TIMEOUT_S)
    def work() -> None:
        interruption.begin()

    work()


def in_bulk(context: LockContext, interruption: Interruption) -> None:
    interruption.begin()
    locks = context.acquire_many([f"{NAME}:{number}" for number in range(3)], TIMEOUT_S)
    context.release_many(locks.values())


def in_bulk_with_a_wait(all_or_nothing: bool) -> Scene:
    def scene(context: LockContext, interruption: Interruption) -> None:
        names = [f"{NAME}:{number}" for number in range(3)]
        interruption.begin()
        locks = context.acquire_many(names, TIMEOUT_S, blocking=True, all_or_nothing=all_or_nothing)
        interruption.end()
        context.release_many(locks.values())

    return scene


def released_in_bulk(context: LockContext, interruption: Interruption) -> None:
    locks = context.acquire_many([f"{NAME}:{number}" for number in range(3)], TIMEOUT_S)
    interruption.begin()
    context.release_many(locks.values())


def released_from_an_iterator(context: LockContext, interruption: Interruption) -> None:
    locks = context.acquire_many([f"{NAME}:{number}" for number in range(3)], TIMEOUT_S)
    read = [*locks.values()]  # reading them from the result is the caller's own code
    interruption.begin()
    context.release_many(lock for lock in read)


def adopted(context: LockContext, interruption: Interruption) -> None:
    lock = context.lock(NAME, TIMEOUT_S)
    lock.acquire()
    text = lock.export()
    interruption.begin()
    try:
        lock = context.adopt(text)
        lock.release()
    finally:
        interruption.end()
        try:
            context.adopt(text).release()  # where the first attempt never began
        except WheelLockError:
            pass


def exported(context: LockContext, interruption: Interruption) -> None:
    lock = context.lock(NAME, TIMEOUT_S)
    lock.acquire()
    interruption.begin()
    try:
        text = lock.export()
    except Struck:
        interruption.end()
        give_back(lock)  # where it was not begun yet
        raise
    interruption.end()
    context.adopt(text).release()


def adopted_in_bulk(context: LockContext, interruption: Interruption) -> None:
    texts = context.export_many(context.acquire_many([NAME, "another"], TIMEOUT_S).values())
    interruption.begin()
    try:
        context.release_many(context.adopt_many(texts.values()).values())
    finally:
        interruption.end()
        context.release_many(context.adopt_many(texts.values()).values())  # where the first attempt never began


def exported_in_bulk(context: LockContext, interruption: Interruption) -> None:
    locks = context.acquire_many([NAME, "another"], TIMEOUT_S)
    given = [*locks.values()]
    interruption.begin()
    try:
        texts = context.export_many(given)
    except Struck:
        interruption.end()
        for lock in given:
            give_back(lock)  # where it was not begun yet
        raise
    interruption.end()
    context.release_many(context.adopt_many(texts.values()).values())


def extended(context: LockContext, interruption: Interruption) -> None:
    with context.lock(NAME, TIMEOUT_S) as lock:
        interruption.begin()
        lock.extend(1.0)


SCENES: dict[str, Scene] = {
    **{f"{kind} in a block": in_a_block(kind) for kind in OF_THEIR_OWN},
    **{f"{kind} by hand": by_hand(kind) for kind in OF_THEIR_OWN},
    "nested": nested,
    "nested by hand": nested_by_hand,
    "reading while writing": reading_while_writing,
    "reading on": reading_on,
    "downgraded": downgraded,
    "downgraded by hand": downgraded_by_hand,
    "decorated": decorated,
    "in bulk": in_bulk,
    "in bulk with a wait": in_bulk_with_a_wait(False),
    "in bulk with a wait, all or nothing": in_bulk_with_a_wait(True),
    "released in bulk": released_in_bulk,
    "released from an iterator": released_from_an_iterator,
    "adopted": adopted,
    "exported": exported,
    "adopted in bulk": adopted_in_bulk,
    "exported in bulk": exported_in_bulk,
    "extended": extended,
}


def keys_of(view: redis.Redis) -> list[bytes]:
    found: Any = view.keys()
    return list(found)


def nothing_is_left(context: LockContext | QuorumContext, view: redis.Redis, where: str) -> None:
    settle(context.timer)
    eventually(lambda: context.stats().held == 0, LONG_S, f"nothing is held, interrupted at {where}")
    eventually(
        lambda: all(b":fence:" in key for key in keys_of(view)), LONG_S, f"no key is left, interrupted at {where}"
    )


TASKS: dict[str, TaskScene] = {}


def of_tasks(scene: TaskScene) -> None:
    TASKS[scene.__name__.replace("_", " ")] = scene


def task_in_a_block(kind: str) -> TaskScene:
    async def scene(context: LockContext, interruption: Interruption) -> None:
        lock = make(context.asyncio, kind, NAME, timeout=TIMEOUT_S)
        interruption.begin()
        async with lock:
            pass

    return scene


TASKS.update({f"{kind} in a block": task_in_a_block(kind) for kind in OF_THEIR_OWN})


@of_tasks
async def by_hand_in_a_task(context: LockContext, interruption: Interruption) -> None:
    lock = context.asyncio.lock(NAME, TIMEOUT_S)
    await lock.acquire()
    interruption.begin()
    await lock.release()


@of_tasks
async def nested_in_a_task(context: LockContext, interruption: Interruption) -> None:
    lock = context.asyncio.reentrant_lock(NAME, TIMEOUT_S)
    async with lock:
        interruption.begin()
        async with lock:
            pass


@of_tasks
async def reading_while_writing_in_a_task(context: LockContext, interruption: Interruption) -> None:
    lock = context.asyncio.rw_lock(NAME, TIMEOUT_S)
    async with lock.write():
        interruption.begin()
        async with lock.read():
            pass


@of_tasks
async def reading_on_in_a_task(context: LockContext, interruption: Interruption) -> None:
    lock = context.asyncio.rw_lock(NAME, TIMEOUT_S)
    writer, reader = lock.write(), lock.read()
    await writer.acquire()
    async with reader:
        interruption.begin()
        await writer.release()


@of_tasks
async def downgraded_in_a_task(context: LockContext, interruption: Interruption) -> None:
    async with context.asyncio.rw_lock(NAME, TIMEOUT_S).write() as writer:
        interruption.begin()
        reader = await writer.downgrade()
        await reader.release()


@of_tasks
async def in_bulk_in_a_task(context: LockContext, interruption: Interruption) -> None:
    tasks = context.asyncio
    interruption.begin()
    locks = await tasks.acquire_many([f"{NAME}:{number}" for number in range(3)], TIMEOUT_S)
    await tasks.release_many(locks.values())


@of_tasks
async def released_from_an_iterator_in_a_task(context: LockContext, interruption: Interruption) -> None:
    tasks = context.asyncio
    locks = await tasks.acquire_many([f"{NAME}:{number}" for number in range(3)], TIMEOUT_S)
    read = [*locks.values()]  # reading them from the result is the caller's own code
    interruption.begin()
    await tasks.release_many(lock for lock in read)


@of_tasks
async def exported_in_a_task(context: LockContext, interruption: Interruption) -> None:
    lock = context.asyncio.lock(NAME, TIMEOUT_S)
    await lock.acquire()
    interruption.begin()
    try:
        text = await lock.export()
    except Struck:
        interruption.end()
        try:
            await lock.release()  # where it was not begun yet
        except WheelLockError:
            pass
        raise
    interruption.end()
    await (await context.asyncio.adopt(text)).release()


@of_tasks
async def adopted_in_a_task(context: LockContext, interruption: Interruption) -> None:
    lock = context.asyncio.lock(NAME, TIMEOUT_S)
    await lock.acquire()
    text = await lock.export()
    interruption.begin()
    try:
        lock = await context.asyncio.adopt(text)
        await lock.release()
    finally:
        interruption.end()
        try:
            await (await context.asyncio.adopt(text)).release()  # where the first attempt never began
        except WheelLockError:
            pass


@of_tasks
async def guarded(context: LockContext, interruption: Interruption) -> None:
    lock = context.asyncio.lock(NAME, TIMEOUT_S, cancel_on_lost=True)
    interruption.begin()
    async with lock:
        pass


@pytest.mark.parametrize("scene", TASKS)
def test_nor_does_one_that_strikes_a_task(context: LockContext, real: Backend, scene: str) -> None:
    everywhere_in_tasks(TASKS[scene], context, real)


def test_nor_does_one_that_strikes_a_task_with_a_lock_of_redis_pys(real: Backend) -> None:
    client = redis.asyncio.Redis(port=real.port)

    async def scene(context: LockContext, interruption: Interruption) -> None:
        lock = ours(client, name=NAME, timeout=TIMEOUT_S)
        interruption.begin()
        async with lock:
            pass

    with LockContext.shared(client) as context:
        everywhere_in_tasks(scene, context, real)


def everywhere_in_tasks(scene: TaskScene, context: LockContext, real: Backend) -> None:
    with asyncio.Runner() as runner:  # one loop for all of them: with it what a task holds would end
        runner.get_loop().set_exception_handler(lambda loop, details: None)

        def play(context: LockContext, interruption: Interruption) -> None:
            async def main() -> None:
                async with asyncio.timeout(LONG_S):
                    await scene(context, interruption)

            runner.run(main())

        everywhere(play, context, real)


def everywhere(play: Scene, context: LockContext, real: Backend) -> None:
    play(context, Interruption(-1))  # what is done once is done
    places = 0
    for where in at_every_place(lambda interruption: play(context, interruption)):
        nothing_is_left(context, real.view, where)
        play(context, Interruption(-1))  # nor does the caller believe to hold it still
        nothing_is_left(context, real.view, where)
        places += 1
    assert places > 5


@pytest.mark.parametrize("scene", SCENES)
def test_an_interruption_anywhere_leaves_nothing_held(context: LockContext, real: Backend, scene: str) -> None:
    everywhere(SCENES[scene], context, real)


@pytest.mark.parametrize("kind", ["exclusive", "multi"])
def test_nor_does_one_that_strikes_a_lock_with_spans(context: LockContext, real: Backend, kind: str) -> None:
    tracers = pytest.importorskip("opentelemetry.trace")
    pytest.importorskip("wheel_lock.observe.opentelemetry").trace(context, tracers.NoOpTracer())
    everywhere(in_a_block(kind), context, real)


@pytest.mark.parametrize("kind", ["lock", "reentrant_lock"])
def test_nor_does_one_that_strikes_a_lock_of_several_masters(real: Backend, kind: str) -> None:
    with ExitStack() as others:
        views = [real.view, *(others.enter_context(others.enter_context(RedisServer()).client()) for _ in range(2))]
        context = others.enter_context(LockContext.quorum(views))

        def play(interruption: Interruption) -> None:
            lock = getattr(context, kind)(NAME, TIMEOUT_S)
            interruption.begin()
            with lock:
                pass

        play(Interruption(-1))
        for where in at_every_place(play):
            for view in views:
                nothing_is_left(context, view, where)


def test_a_context_that_is_closed_in_spite_of_an_interruption(real: Backend) -> None:
    for where in at_every_place(lambda interruption: closed(real, interruption)):
        eventually(lambda: not keys_of(real.view), LONG_S, f"no key is left, interrupted at {where}")


def closed(backend: Backend, interruption: Interruption) -> None:
    with LockContext(backend.client()) as context:
        lock = context.lock(NAME, TIMEOUT_S)
        assert lock.acquire()
        interruption.begin()


@pytest.mark.parametrize("terms", [{}, {"timeout": TIMEOUT_S, "thread_local": False}], ids=str)
@pytest.mark.parametrize("way", ["in a block", "at the end of a block", "by hand"])
def test_nor_does_one_that_strikes_a_lock_of_redis_pys(real: Backend, way: str, terms: dict[str, Any]) -> None:
    with real.client() as client:

        def scene(context: LockContext, interruption: Interruption) -> None:
            lock = ours(client, name=NAME, **terms)
            if way == "in a block":
                interruption.begin()
            if way == "by hand":
                lock.acquire()
                interruption.begin()
                lock.release()
            else:
                with lock:
                    interruption.begin()

        with LockContext.shared(client) as context:
            everywhere(scene, context, real)


@pytest.mark.parametrize("again_after", [0, 2])
@pytest.mark.parametrize(
    "scene", ["exclusive by hand", "nested by hand", "multi by hand", "released in bulk", "released from an iterator"]
)
def test_nor_does_a_second_interruption(context: LockContext, real: Backend, scene: str, again_after: int) -> None:
    play = SCENES[scene]
    for where in at_every_place(lambda interruption: play(context, interruption), again_after=again_after):
        nothing_is_left(context, real.view, where)


@pytest.mark.parametrize("scene", ["multi by hand", "released in bulk", "released from an iterator"])
def test_nor_does_one_that_looks_like_a_misuse(context: LockContext, real: Backend, scene: str) -> None:
    play = SCENES[scene]
    for where in at_every_place(lambda interruption: play(context, interruption), error=StruckTypeError):
        nothing_is_left(context, real.view, where)


@pytest.mark.parametrize("scene", ["exclusive in a block", "downgraded"])
def test_nor_do_the_signals_of_a_timer(context: LockContext, real: Backend, scene: str) -> None:
    rng, struck = random.Random(5), 0

    def strike(number: int, frame: object) -> None:
        raise Struck

    class AfterAWhile(Interruption):
        def begin(self) -> None:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 4e-4))

        def end(self) -> None:
            signal.setitimer(signal.ITIMER_REAL, 0)

    SCENES[scene](context, Interruption(-1))
    before = signal.signal(signal.SIGALRM, strike)
    try:
        for _ in range(300):
            interruption = AfterAWhile(-1)
            try:
                SCENES[scene](context, interruption)
                interruption.end()
            except Struck:
                struck += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    nothing_is_left(context, real.view, "many moments")
    assert struck > 0
    assert context.stats().connects == 1
