"""What random users do beside acquiring and releasing a lock: blocks, decorators, elections, bulk handoffs, others."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from redis.exceptions import RedisError

from tests.simulation.scheduler import Dice
from wheel_lock.errors import LocksNotAdopted, LossReason
from wheel_lock.redis_lock import AsyncLock, Lock

if TYPE_CHECKING:
    from tests.simulation.programs import User
    from tests.simulation.record import Holding

CALLERS_TOKEN = b"caller-"  # prefix of callers' tokens
_STOPS_S = 0.5  # time in which a task is cancelled when its lock is lost
_names = ("x", "y", "z")


def _terms(user: User, dice: Dice) -> dict[str, Any]:
    terms = user.terms(dice)
    blocking, limit = user.waiting(dice)
    return terms | ({"blocking_timeout": limit} if blocking else {"blocking": False})


# -- blocks and functions ------------------------------------------------------------------------------------------------


async def block(user: User, dice: Dice) -> None:
    """Hold a lock for a block; some tasks are cancelled if it is lost."""
    holding, name, terms = user.new_holding(), dice.pick(_names), _terms(user, dice)
    if not user.is_task:
        with user.context.lock(name, on_lost=holding.on_lost, **terms) as lock:
            await _in_block(user, lock, holding, dice)
        return
    cancels = dice.one_in(2)
    async with user.context.lock(name, on_lost=holding.on_lost, cancel_on_lost=cancels, **terms) as lock:
        await _in_block(user, lock, holding, dice)
        process = user.process
        reported_at, stops = holding.reported_at.get(name), len(process.stops)
        if cancels and reported_at is not None and stops == holding.stops and not user.world.settings.slow_processes:
            late_s = user.world.scheduler.now - reported_at
            if late_s > _STOPS_S:
                user.world.rules.broken(
                    "callers", f"{user.name} went on for {late_s:.3f} s behind the loss of {name!r}"
                )


async def _in_block(user: User, lock: Any, holding: Holding, dice: Dice) -> None:
    user.note("enters a block with %s", lock.name)
    user.world.rules.holds(lock, holding, {})
    await user.sleep(dice.pick([0.1, 1.3, 3.2]))
    user.note("leaves the block with %s", lock.name)


async def row(user: User, dice: Dice) -> None:
    """Acquire and release a lock several times in a row, most often a free one: what the direct path is for."""
    context, name = user.context, dice.pick(["q", "q", "x"])
    for _ in range(1 + dice.below(6)):
        holding = user.new_holding()
        lock = context.lock(name, 3.0, on_lost=holding.on_lost)
        with user.limited(f"acquire of {name!r}", 0.5):
            granted = await user.do(lock.acquire(blocking_timeout=0.5))
        if granted:
            user.world.rules.holds(lock, holding, {})
            await user.sleep(dice.pick([0.0, 0.0, 0.005, 0.15, 0.3]))
            await user.release(lock)


def new_lock(user: User, kind: str, name: str, holding: Holding, terms: dict[str, Any], *, writes: bool) -> Any:
    """Return a lock of a kind; that of a read-write lock is a reader, or, if it ``writes``, a writer."""
    context = user.context
    if kind == "semaphore":
        return context.semaphore(name, user.permits, on_lost=holding.on_lost, **terms)
    if kind == "read-write":
        both = context.rw_lock(name, on_lost=holding.on_lost, **terms)
        return both.write() if writes else both.read()
    make = {"exclusive": context.lock, "fair": context.fair_lock, "reentrant": context.reentrant_lock}[kind]
    return make(name, on_lost=holding.on_lost, **terms)


async def keep_extended(user: User, dice: Dice) -> None:
    """Hold a lock, and extend it again and again, as work goes on whose end is not known."""
    holding, name = user.new_holding(), dice.pick(_names)
    lock = user.context.lock(name, dice.pick([1.0, 0.5, 3.0]), on_lost=holding.on_lost)
    if not await user.acquire(lock, dice):
        return
    user.world.rules.holds(lock, holding, {})
    with user.promised("an extension"):
        for _ in range(1 + dice.below(6) if user.world.settings.extends else 0):
            await user.do(lock.extend(dice.pick([2.0, 0.8, 4.0]), replace_ttl=True))
            await user.sleep(dice.pick([0.2, 0.5, 0.0]))
    await user.release(lock)


async def decorated(user: User, dice: Dice) -> None:
    """Call a function that holds a lock."""
    holding, terms, world = user.new_holding(), _terms(user, dice), user.world
    decorator = user.process.contexts[-1].locked("{name}", on_lost=holding.on_lost, **terms)
    name, seconds, answer = dice.pick(_names), dice.up_to(1.5), world.new_number()

    if user.is_task:

        @decorator
        async def work(name: str) -> int:
            holding.got.add(name)
            await user.sleep(seconds)
            return answer

        answered = await work(name)
    else:

        @decorator
        def work_as_thread(name: str) -> int:
            holding.got.add(name)
            user.sleep_as_thread(seconds)
            return answer

        answered = work_as_thread(name)
    if answered != answer:
        world.rules.broken("callers", f"{user.name} got {answered} from a function that returned {answer}")


# -- tokens, permits ---------------------------------------------------------------------------------------------------


async def with_own_token(user: User, dice: Dice) -> None:
    """Acquire a lock with a token of the caller's."""
    holding, terms = user.new_holding(), user.terms(dice)
    lock = user.context.lock(dice.pick(_names), on_lost=holding.on_lost, **terms)
    token = CALLERS_TOKEN.decode() + f"{user.world.new_number()}"
    await user.use(lock, holding, terms, dice, token=token)


async def set_permits(user: User, dice: Dice) -> None:
    """Change the number of permits for all processes; never to more than the rules know of."""
    from tests.simulation.programs import NAMES, PERMITS

    permits = dice.pick([PERMITS, 1, None])
    semaphore = user.context.semaphore(dice.pick(NAMES["semaphore"]), PERMITS)
    user.note("sets %s permits", permits)
    await user.do(semaphore.set_permits(permits))


# -- bulk handoffs -----------------------------------------------------------------------------------------------------


async def export_many(user: User, dice: Dice) -> None:
    """Acquire many locks, and give them up for others to adopt."""
    holding, context = user.new_holding(), user.context
    names = [f"h{number}" for number in range(1 + dice.below(4))]
    found = await user.do(context.acquire_many(names, dice.pick([1.0, 3.0]), on_lost=holding.on_lost))
    locks = {name: lock for name, lock in found.items() if lock is not None}
    holding.got.update(locks)
    await user.sleep(dice.up_to(1.0))
    user.note("exports %s", list(locks))
    texts = await user.do(context.export_many(locks.values()))
    for name, text in texts.items():
        if text is None and locks[name].lost is None:
            user.world.rules.broken("callers", f"{name!r} was not exported, and is not lost")
    user.world.many.append(dict(texts))


async def adopt_many(user: User, dice: Dice) -> None:
    """Adopt a lock that was exported."""
    many = user.world.many
    if not many:
        return
    texts = many[0] if dice.one_in(8) else many.pop(0)
    holding, context = user.new_holding(), user.context
    user.note("adopts %s", list(texts))
    try:
        found = await user.do(context.adopt_many(texts.values(), on_lost=holding.on_lost))
    except LocksNotAdopted as error:
        found = error.locks
    locks = [lock for lock in found.values() if lock is not None]
    for lock in locks:
        user.world.rules.holds(lock, holding, {})
    await user.sleep(dice.up_to(1.5))
    await user.do(context.release_many(locks))


# -- elections ---------------------------------------------------------------------------------------------------------


async def stand(user: User, dice: Dice) -> None:
    """Stand for election for a while."""
    from tests.simulation.programs import NAMES

    world, context = user.world, user.context
    elections: list[Any] = []
    demotions: list[Any] = []

    def elected(leadership: Any) -> Any:
        user.note("is elected for %s with fence %s", leadership.name, leadership.fence)
        if any(other is not leadership and other not in demotions for other in elections):
            world.rules.broken("leader", f"{user.name} was elected again before it was demoted")
        elections.append(leadership)
        world.rules.exercised["leader"] += sum(process.alive for process, _ in world.rules.candidates) > 1
        return user.sleep(seconds) if user.is_task else user.sleep_as_thread(seconds)

    def demoted(leadership: Any) -> None:
        user.note("is demoted, lost: %s", leadership.lost)
        if leadership.is_held or not leadership.ended.is_set():
            world.rules.broken("leader", f"{user.name} was demoted without an end of the term")
        demotions.append(leadership)

    def failed(error: Exception) -> None:
        user.note("stands again after %s: %s", type(error).__name__, str(error))

    seconds = dice.pick([0.0, 0.5, 3.0])
    leader = context.leader(
        NAMES["leader"][0], dice.pick([1.0, 0.5, 3.0]), on_elected=elected, on_demoted=demoted, on_error=failed
    )
    world.rules.candidates.append((user.process, leader))
    user.note("stands for election")
    if user.is_task:
        async with leader:
            await _campaign(user, leader, dice)
    else:
        with leader:
            await _campaign(user, leader, dice)


async def _campaign(user: User, leader: Any, dice: Dice) -> None:
    for _ in range(1 + dice.below(3)):
        await user.sleep(dice.pick([0.5, 2.0]))
        if leader.is_leader:
            user.world.rules.leads(leader)
        if dice.one_in(3):
            user.note("resigns: %s", leader.resign())
    user.note("no longer stands for election")


# -- objects that several callers use, or none -------------------------------------------------------------------------


async def lend(user: User, dice: Dice) -> None:
    """Acquire a lock that any thread may release, and leave it to the others of the process."""
    holding, terms = user.new_holding(), user.terms(dice)
    lock = user.context.lock(dice.pick(_names), on_lost=holding.on_lost, thread_local=False, **terms)
    if await user.acquire(lock, dice):
        user.world.rules.holds(lock, holding, terms)
        user.process.lent[user.is_task].append(lock)


async def use_lent(user: User, dice: Dice) -> None:
    """Do something with a lock that another user of the process has acquired."""
    lent = user.process.lent[user.is_task]
    if not lent:
        return
    lock = dice.pick(lent)
    if dice.one_in(3):
        await user.do(lock.extend(1.0))
        await user.sleep(dice.up_to(0.5))
    if lock in lent:
        lent.remove(lock)
    await user.release(lock)


async def leave_to_collector(user: User, dice: Dice) -> None:
    """Forget a lock that is held, and that only the garbage collector finds; it comes now, or at some other moment."""
    holding, terms = user.new_holding(), user.terms(dice)
    lock = user.context.lock(dice.pick(_names), on_lost=holding.on_lost, **terms)
    if await user.acquire(lock, dice):
        user.world.rules.holds(lock, holding, terms)
        cycle: list[Any] = [lock]
        cycle.append(cycle)
        del lock, cycle
        if dice.one_in(4):
            await user.sleep(dice.up_to(0.5))
            user.note("the collector comes")
            gc.collect()


async def end_holding(user: User, dice: Dice) -> None:
    """End the thread, or the task, which holds a lock that it has left to others; another one takes its place."""
    holding, terms = user.new_holding(), user.terms(dice)
    lock = user.context.lock(dice.pick(_names), on_lost=holding.on_lost, **terms)
    if await user.acquire(lock, dice):
        user.world.rules.holds(lock, holding, terms)
        user.process.left.append(lock)
        user.note("ends")
        user.ends = True
        user.world.new_user(user.process, task=user.is_task)


async def fork(user: User, dice: Dice) -> None:
    """Fork while a lock is held. The history goes on in the child; the parent is killed, or goes on beside it."""
    if user.is_task or user.process.tasks or not dice.one_in(3):
        return
    holding, terms = user.new_holding(), user.terms(dice)
    lock = user.context.lock(dice.pick(_names), on_lost=holding.on_lost, **terms)
    if not await user.acquire(lock, dice):
        return
    holding.interrupted = True  # the child gets no reports
    world = user.world
    lives, again = dice.one_in(2), dice.one_in(2)
    user.note("forks, and the parent lives: %s", lives)
    user.process.fork(parent_lives=lives)
    if lock.is_held or (lock.lost is not LossReason.FORKED and lock.lost is None):
        world.rules.broken("fork", f"{user.name} holds {lock.name!r} in a forked child")
    if user.context.held():
        world.rules.broken("fork", f"{user.process.name} holds {user.context.held()} in a forked child")
    world.rules.exercised["fork"] += 1
    if again:  # the child has the parent's lock objects, and may use them for itself
        with user.promised("an extension by a child"):
            await user.do(lock.extend(1.0))
            world.rules.broken("fork", f"{user.name} has extended {lock.name!r} in a forked child")
        if await user.acquire(lock, dice):
            world.rules.holds(lock, holding, terms)
    await user.release(lock)


# -- redis_lock --------------------------------------------------------------------------------------------------------


class Client(redis.Redis):
    """redis-py's client of a process, for ``redis_lock``. It has no network of its own."""

    def __init__(self, process: Any) -> None:
        super().__init__()
        self.process = process

    @property
    def context(self) -> Any:
        """The context that its locks share."""
        return self.process.contexts[-1]

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        raise redis.exceptions.ConnectionError("there is no connection")


class AsyncClient(redis.asyncio.Redis):
    """The same for asyncio."""

    def __init__(self, process: Any) -> None:
        super().__init__()
        self.process = process

    context = Client.context

    async def execute_command(self, *arguments: Any, **options: Any) -> Any:
        raise redis.exceptions.ConnectionError("there is no connection")


async def redis_lock(user: User, dice: Dice) -> None:
    """Use a lock with redis-py's interface."""
    client, kind = (
        user.process.redis_client(AsyncClient if user.is_task else Client),
        AsyncLock if user.is_task else Lock,
    )
    limit = dice.pick([2.0, None, 0.3])
    lock = kind(client, dice.pick(_names), timeout=dice.pick([1.0, 0.5, 3.0]), sleep=0.1, blocking_timeout=limit)
    user.note("acquires %s as redis-py does", lock.name)
    with user.promised("redis_lock", RedisError):
        with user.limited(f"acquire of {lock.name!r}", limit):
            granted = await user.do(lock.acquire())
        if not granted:
            return
        user.note("got %s as redis-py does", lock.name)
        await user.sleep(dice.up_to(2.0))
        if user.world.settings.extends and dice.one_in(3):
            await user.do(lock.extend(1.0) if dice.one_in(2) else lock.reacquire())
        if dice.one_in(5):
            user.note("forgets %s", lock.name)
            return
        await user.do(lock.release())
        user.note("released %s", lock.name)


OF_BOTH = (block, decorated, lend, use_lent, leave_to_collector)  # actions for contexts of one store, and of a majority
EVERYDAY = (*OF_BOTH, row, keep_extended, with_own_token, export_many, adopt_many, stand, redis_lock)
UNUSUAL = (set_permits, end_holding, fork)
