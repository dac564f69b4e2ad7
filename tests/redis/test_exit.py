"""The end of a process that holds locks: it comes quickly, without a word, and the locks are free as soon as can be."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.backend import Backend
from tests.support.programs import ENVIRONMENT, ROOT, run_python
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from wheel_lock.engine.direct import connection

ALLOWED_S = 4.5  # a second by design; the rest is for a busy machine. Any time limit of the library's is longer.

BEGINNING = """
import signal, sys, threading, time
import redis
from wheel_lock import LockContext
port = int(sys.argv[1])
context = LockContext(redis.Redis(host="127.0.0.1", port=port))
def ready():
    print("ready", flush=True)
    sys.stdin.readline()
    print(time.monotonic(), flush=True)
"""


class Script:
    """A program that runs up to ready(), and goes on to its end when it is asked to."""

    def __init__(self, port: int, text: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", BEGINNING + text, str(port)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # communicate() does not see what a buffer has read behind the first line
        )
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        if first != b"ready\n":
            pytest.fail(f"the script did not get ready: {first!r} {self._process.communicate()[1]!r}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, str, float]:
        """Let it go on to its end; its exit code, what it wrote to stderr, and how long the end took."""
        try:
            out, errors = self._process.communicate(b"go on\n", timeout=30.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        ended = time.monotonic()
        return self._process.returncode, errors.decode(), ended - float(out or ended)


def check_quiet_end(script: Script, code: int = 0) -> None:
    returncode, errors, took_s = script.end()
    assert errors == ""
    assert returncode == code
    assert took_s < ALLOWED_S


def run(text: str, *ports: int) -> str:
    """Run a program from its start to its end, which is to be quiet; return what it has printed."""
    return run_python("-c", text, *map(str, ports))


ENDS = {
    "many, one of a thread's, and a context that was never used": """
def work():
    lock.acquire()
    held.set()
    time.sleep(60)
unused = LockContext(redis.Redis(host="127.0.0.1", port=port))
locks = context.acquire_many([f'shard:{n}' for n in range(3000)])
lock = context.lock('order:42')
held = threading.Event()
threading.Thread(target=work, daemon=True).start()
held.wait()
ready()
""",
    "a daemon thread that acquires after what is held was released": """
def work():
    ended.wait()
    with context.lock('order:42'): time.sleep(60)
def go_on():
    ended.set()
    time.sleep(0.2)
ended = threading.Event()
with context.lock('order:41'): pass  # so that there is a connection
threading.Thread(target=work, daemon=True).start()
import atexit
from wheel_lock.sync.process_end import at_exit
atexit.unregister(at_exit)
atexit.register(go_on)
atexit.register(at_exit)  # which comes first, then
ready()
""",
    "a finaliser that runs when the threads have ended": """
from wheel_lock import ContextClosed
class Late:
    def __init__(self, lock): self.lock = lock
    def __del__(self, closed=ContextClosed, context=context):
        try:
            self.lock.acquire()
        except closed:
            pass  # any other error is shown
        context.close()
late = Late(context.lock('order:42'))
with context.lock('order:41'): pass  # so that the thread has run; nothing is held at the end
ready()
""",
}


@pytest.mark.parametrize("what", ENDS)
def test_nothing_is_left_when_the_interpreter_ends(real: Backend, what: str) -> None:
    script = Script(real.port, ENDS[what])
    assert real.view.dbsize() > 0 or what.startswith("a ")
    check_quiet_end(script)
    assert real.view.keys() == []


def test_what_is_about_to_be_granted_to_a_daemon_thread_is_released(real: Backend, proxy: TcpProxy) -> None:
    proxy.to_client.delay_s = 0.1
    script = Script(
        proxy.port,
        """
with context.lock('order:41'): pass  # so that there is a connection
threading.Thread(target=context.lock('order:42').acquire, daemon=True).start()
while not context._engine.leases.acquiring: time.sleep(0.001)
ready = lambda: (print("ready", flush=True), print(time.monotonic(), flush=True))  # the end comes at once
ready()
""",
    )
    check_quiet_end(script)
    assert real.view.keys() == []


def test_an_error_that_ends_the_program_is_all_that_is_shown(real: Backend) -> None:
    script = Script(real.port, "lock = context.lock('order:42'); lock.acquire(); ready(); raise ZeroDivisionError('x')")
    returncode, errors, took_s = script.end()
    assert returncode == 1
    assert errors.count("Traceback") == 1
    assert errors.endswith("ZeroDivisionError: x\n")
    assert took_s < ALLOWED_S
    assert not real.view.exists("order:42")


@pytest.mark.parametrize("end", [RedisServer.pause, RedisServer.kill], ids=["silent", "gone"])
def test_a_server_that_does_not_answer_does_not_keep_the_interpreter(
    fresh_redis: RedisServer, fresh: Backend, end: Callable[[RedisServer], None]
) -> None:
    script = Script(
        fresh.port,
        """
contexts = [LockContext(redis.Redis(host="127.0.0.1", port=port)) for _ in range(5)]
locks = [context.lock(f'order:{number}', timeout=30.0) for number, context in enumerate(contexts)]
for lock in locks: lock.acquire()
ready()
""",
    )
    end(fresh_redis)
    check_quiet_end(script)


# Daemon threads that are at work when the interpreter ends

AT_WORK = {
    "locks": """
def plain(number):
    while True:
        with context.lock(f"lock:{number}") as lock:
            lock.extend(1.0)
            lock.raise_if_lost()
def family(number):
    while True:
        with context.reentrant_lock(f"r:{number}"), context.reentrant_lock(f"r:{number}"):
            with context.rw_lock(f"rw:{number}").write(), context.semaphore("permits", 3):
                pass
        with context.multi_lock([f"m:{number}", f"n:{number}"]):
            pass
def bulk(number):
    while True:
        context.release_many(context.acquire_many([f"b:{number}:{n}" for n in range(20)]).values())
WORKS = [plain, plain, family, bulk]
""",
    "tasks, masters and a server that is not there": """
async def task(number):
    while True:
        async with context.asyncio.lock(f"t:{number}", cancel_on_lost=bool(number % 2)):
            await asyncio.sleep(0.001)
async def several(number):
    await asyncio.gather(*[task(10 * number + n) for n in range(4)])
def tasks(number):
    asyncio.run(several(number))
quorum = LockContext.quorum([redis.Redis(port=int(each)) for each in sys.argv[1:]])
def masters(number):
    while True:
        with quorum.lock(f"q:{number}"):
            pass
away = LockContext(redis.Redis(port=1))
def refused(number):
    while True:
        try:
            away.lock("nowhere", blocking_timeout=0.02).acquire()
        except LockError:
            pass
WORKS = [tasks, tasks, masters, refused]
""",
    "losses and timers": """
logging.getLogger("wheel_lock").setLevel(logging.CRITICAL)
client = redis.Redis(port=port)
def losses(number):
    while True:
        lock = context.lock(f"l:{number}", timeout=1.0, renew_every=0.02, on_lost=lambda event: time.sleep(0.01))
        lock.acquire()
        client.delete(lock.name)
        while lock.is_held:
            time.sleep(0.001)
def timers(number):
    while True:
        context.timer.new_timeout(lambda timeout: None, 0.001)
        timer = HashedWheelTimer()
        try:
            timer.new_timeout(lambda timeout: None, 0.0)
        except RuntimeError:
            return  # Python 3.12 and newer start no thread while the interpreter ends
        time.sleep(0.001)
        timer.stop()
WORKS = [losses, losses, timers, timers]
""",
}


@pytest.mark.parametrize(("works", "pause_s"), [*((works, 0.05) for works in AT_WORK), ("locks", 0.0)])
def test_daemon_threads_that_are_at_work_print_nothing(fresh_redis: RedisServer, works: str, pause_s: float) -> None:
    beginning = "import asyncio, atexit, logging\nimport time\natexit.register(time.sleep, 0.1)\n" + BEGINNING
    end = f"""
from redis.exceptions import LockError
from wheel_lock import HashedWheelTimer
held = context.lock("held", thread_local=False)
held.acquire()
{AT_WORK[works]}
for number, work in enumerate(WORKS):
    threading.Thread(target=work, args=(number,), daemon=True).start()
time.sleep({pause_s})
"""
    with ExitStack() as stack:
        others = [stack.enter_context(RedisServer()).port for _ in range(2 if "masters" in works else 0)]
        run(beginning + end, fresh_redis.port, *others)


@pytest.mark.skipif(not connection._SYSTEM_HAS_IT, reason="there is no direct path")
def test_a_daemon_thread_that_waits_for_its_own_reply_prints_nothing(real: Backend) -> None:
    beginning = "import atexit, time\natexit.register(time.sleep, 0.1)\n" + BEGINNING
    end = """
from wheel_lock.engine.direct import connection
from wheel_lock.engine.direct.connection import DirectConnection
connection._WORTH_IT = 1
while context._engine.direct.connection is None:
    with context.lock('order:41'): time.sleep(0.001)
asked, ask = threading.Event(), DirectConnection.ask
def ask_slowly(self, request, until):
    reply = ask(self, request, until)
    asked.set()
    time.sleep(0.05)
    return reply
DirectConnection.ask = ask_slowly
threading.Thread(target=context.lock('order:42').acquire, daemon=True).start()
asked.wait()
"""
    run(beginning + end, real.port)


def test_what_runs_at_exit_on_the_main_thread_finds_the_context_closed(real: Backend) -> None:
    text = """
import atexit
@atexit.register
def last():
    try:
        lock.release()
    except wheel_lock.LockLost as error:
        print(error, flush=True)
import wheel_lock
"""
    said = run(text + BEGINNING + "lock = context.lock('order:42'); lock.acquire()", real.port)
    assert said == "The lock 'order:42' was lost: context closed\n"


# Ends by a signal that has no handler of the program's

UNDER_SIGTERM = {
    "threads and tasks": """
def more(number):
    while True:
        with context.lock(f"a:{number}"), context.reentrant_lock(f"r:{number}"): pass
async def task(number):
    while True:
        async with context.asyncio.lock(f"t:{number}"): await asyncio.sleep(0.001)
async def tasks():
    await asyncio.gather(*[task(number) for number in range(4)])
for number in range(4): threading.Thread(target=more, args=(number,), daemon=bool(number % 2)).start()
work = lambda: asyncio.run(tasks())
""",
    "a waiter": """
lock = context.lock("order:42", thread_local=False)
lock.acquire()
work = context.lock("order:42").acquire
""",
    "a close that is under way": """
locks = context.acquire_many([f'shard:{n}' for n in range(30000)])
work = context.close
""",
}


CLOSE_ON_SIGTERM = """
import asyncio, os
work = lambda: None
taken = context.close_on_signals()
assert taken == (signal.SIGTERM,), taken
"""


@pytest.mark.parametrize("what", UNDER_SIGTERM)
def test_a_signal_releases_what_is_held_and_ends_the_process(real: Backend, what: str) -> None:
    end = """
print("ready", flush=True)
work()
time.sleep(60)
"""
    script = Script(real.port, CLOSE_ON_SIGTERM + UNDER_SIGTERM[what] + end)
    time.sleep(random.uniform(0.0, 0.1))
    script.signal(signal.SIGTERM)
    returncode, errors, _ = script.end()
    assert (returncode, errors) == (-signal.SIGTERM, "")
    assert real.view.keys() == []


def test_a_signal_ends_a_forked_child_in_the_same_way(real: Backend) -> None:
    text = """
if os.fork():
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    sys.exit()
lock = context.lock("order:42")
lock.acquire()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
    assert run(BEGINNING + CLOSE_ON_SIGTERM + text, real.port) == f"{-signal.SIGTERM}\n"
    assert real.view.keys() == []


def test_a_handler_of_the_program_is_kept(backend: Backend) -> None:
    def handler(number: int, frame: object) -> None:
        """Do nothing."""

    before = signal.signal(signal.SIGUSR1, handler), signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        assert backend.context().close_on_signals(signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT) == ()
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])


def test_signals_that_end_no_process_are_refused(backend: Backend) -> None:
    context = backend.context()
    for number in (signal.SIGKILL, signal.SIGCHLD, signal.SIGSEGV, 0):
        with pytest.raises(ValueError, match=f"{number!r} is not one of SIGTERM, "):
            context.close_on_signals(number)
    with ThreadPoolExecutor() as pool, pytest.raises(ValueError, match="main thread"):
        pool.submit(context.close_on_signals).result()


# Children of multiprocessing

CHILDREN = """
import multiprocessing, os, threading, time
from concurrent.futures import ProcessPoolExecutor

import redis

from wheel_lock import LockContext

inherited = LockContext(redis.Redis(port={port}))
kept = []

def hold(how):
    context = inherited if how == "inherited" else LockContext(redis.Redis(port={port}))
    kept.append(context.lock(f"{{how}}:{{os.getpid()}}"))
    assert kept[-1].acquire()
    if how == "thread":
        threading.Thread(target=work, args=(context,)).start()
    if how == "raises":
        raise SystemExit(3)

def work(context, more=1):
    with context.lock("thread") as lock:
        time.sleep(0.3)
        assert kept[0].is_held and lock.is_held  # although the main thread has ended
    if more:
        threading.Thread(target=work, args=(context, more - 1)).start()

if __name__ == "__main__":
    method = multiprocessing.get_context({method!r})
    children = [method.Process(target=hold, args=(how,)) for how in ("plain", "inherited", "thread", "raises")]
    for child in children: child.start()
    for child in children: child.join()
    with ProcessPoolExecutor(1, mp_context=method) as pool:
        pool.submit(hold, "pool").result()
    print([child.exitcode for child in children])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_releases_at_its_end(real: Backend, tmp_path: Path, method: str) -> None:
    program = tmp_path / "children.py"
    program.write_text(CHILDREN.format(port=real.port, method=method))
    assert run_python(str(program)) == "[0, 0, 0, 3]\n"
    assert real.view.keys() == []


def test_a_timer_that_is_turned_by_hand_does_not_keep_a_process_from_its_end(redis_server: RedisServer) -> None:
    program = """
from wheel_lock import HashedWheelTimer
timer, over = HashedWheelTimer(threaded=False), threading.Event()
def turn():
    while not over.is_set():
        timer.turn()
turner = threading.Thread(target=turn)
turner.start()
lock = LockContext(redis.Redis(host="127.0.0.1", port=port), timer=timer).lock("a", timeout=1.0)
assert lock.acquire()
over.set()
turner.join()
"""
    run(BEGINNING + program, redis_server.port)
