"""Fixtures for everything under tests: real servers, and a network that can fail.

Without a redis-server program the tests that use one are skipped on a laptop, and fail where CI is set.

Markers, on a test or as a module's `pytestmark`, choose what the fixtures are:

    servers("real")       What `backend` is, and with it `context`, `other` and `view`; a test runs once for each kind.
                          "real": the session's redis-server; "fresh": a redis-server of the test's own; "embedded": the
                          one of wheel_lock.testing. Without the marker: "real" and "embedded".
    settings(**settings)  The settings of `context` and `through_proxy`; own_timer=True gives it a timer of its own.
    rig(**settings)       The settings of `rig` of the tests of engines.
    loops("uvloop")       The event loops of `new_loop` and `run`: "asyncio", "uvloop". Without the marker: "asyncio".

A test may be an `async def`: it is run by `run`.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
import redis.utils

from tests.support.backend import Backend, connected, without_collection
from tests.support.background import EVENTUALLY_S
from tests.support.callers import APIS, Caller, NewCaller, callers
from tests.support.draws import SEED
from tests.support.event_loops import NewLoop, Run, loop_factory, watched_run
from tests.support.fixtures import fixture_of
from tests.support.logged import logged
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.timers import NewTimer
from tests.support.tls import TlsFiles, make_tls_files
from wheel_lock import HashedWheelTimer, LockContext
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.testing import EmbeddedServer, ManualClock

# redis-py looks it up for each client in the files of the installed packages, which takes a millisecond.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)

_MARKERS = (
    "servers(*kinds): the servers that `backend` is",
    "settings(**settings): the settings of `context`",
    "loops(*kinds): the event loops that `new_loop` makes",
    "rig(**settings): the settings of `rig`",
)


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    # A shell that starts the tests in the background has them ignore both, and every program that a test starts would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # Hypothesis imports trio where it is installed, and warns of trio's generator of random numbers.
    os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")
    from hypothesis import HealthCheck, settings

    # New examples in each run, also where CI is set, which would have Hypothesis repeat the same ones for ever; a failure
    # prints what brings its example back. How long an example takes depends on the machine.
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "wheel_lock", max_examples=40, derandomize=False, print_blob=True, deadline=None, suppress_health_check=slow
    )
    settings.load_profile("wheel_lock")


def pytest_pycollect_makeitem(name: str, obj: Any) -> None:
    if name.startswith("test_") and inspect.iscoroutinefunction(obj):
        pytest.mark.usefixtures("run")(obj)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop, see `run`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    run: Any = pyfuncitem.funcargs["run"]
    run(pyfuncitem.obj(**arguments))
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, marker, default in [("backend", "servers", ("real", "embedded")), ("new_loop", "loops", ("asyncio",))]:
        if fixture in metafunc.fixturenames:
            chosen = metafunc.definition.get_closest_marker(marker)
            metafunc.parametrize(fixture, chosen.args if chosen else default, indirect=True)


# Here fixtures of a module start many processes, or one that is slow to start, or build a program.
_BY_FILE = (
    "cli/test_doctor_refusals",
    "cli/test_run_command",
    "cli/test_target",
    "crowds/",
    "greenlets/",
    "interop/",
    "quorum/",
    "site/",
    "topology/",
    "bench/test_foreign_workers",
)
_RUN_BY_FOLDER = "tests/guards"  # whose database servers are those of the session
_RUN_BY_FILE = tuple(f"tests/{part}" for part in _BY_FILE)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand tests out one by one, but for files and folders whose tests share what is dear to start."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(f"{_RUN_BY_FOLDER}/"):
                return _RUN_BY_FOLDER
            return nodeid.partition("::")[0] if nodeid.startswith(_RUN_BY_FILE) else nodeid

    return Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # begin with what takes long, so that no process waits for another at the end
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    # The interpreter stands still while it collects, and with it every renewal. What is there for the whole session, some
    # 200,000 objects, is scanned by no collection after this.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    # What a test has caused is logged before the next one reads the log.
    NOTIFIER.drain(EVENTUALLY_S)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show what repeats the run, and what tests have recorded as a ``summary``."""
    terminalreporter.write_line(f"TESTS_SEED={SEED} draws the same places again")
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(text)


def pytest_runtest_logfinish() -> None:
    # Contexts that tests have dropped keep their sockets until a full collection, and redis-py's select() takes numbers
    # up to 1023 only.
    if len(os.listdir("/proc/self/fd")) > 700:
        gc.collect()


shared_redis_server = fixture_of(RedisServer, "session")


@pytest.fixture
def redis_server(shared_redis_server: RedisServer) -> RedisServer:
    """The session's server, empty. For tests that leave its settings and process alone; see fresh_redis."""
    shared_redis_server.heal()
    shared_redis_server.admin.flushall()
    return shared_redis_server


fresh_redis = fixture_of(RedisServer)
"""A server of the test's own, to configure, pause, kill and restart."""


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """An authority and a certificate for localhost and 127.0.0.1."""
    return make_tls_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_redis(tls_files: TlsFiles) -> Iterator[RedisServer]:
    """A server of the test's own whose url is rediss://."""
    with RedisServer(tls=tls_files) as server:
        yield server


unix_redis = fixture_of(lambda: RedisServer(unixsocket=True))
"""A server of the test's own whose url is unix://."""


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[TcpProxy]:
    """A network that can fail, in front of redis_server."""
    with TcpProxy(redis_server.port) as proxy:
        yield proxy


embedded_server = fixture_of(EmbeddedServer, "session")


def _opened(backend: Backend) -> Iterator[Backend]:
    with backend:
        backend.view.flushall()
        yield backend


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """An empty server, of each kind that the marker `servers` names."""
    # Asked for here and not as arguments, so that without a redis-server only half of the tests are skipped.
    if request.param == "embedded":
        embedded: EmbeddedServer = request.getfixturevalue("embedded_server")
        yield from _opened(Backend("embedded", embedded.port, embedded.password))
    else:
        server: RedisServer = request.getfixturevalue("redis_server" if request.param == "real" else "fresh_redis")
        yield from _opened(Backend("real", server.port))


@pytest.fixture
def real(redis_server: RedisServer) -> Iterator[Backend]:
    """The session's real server, for what the embedded one cannot do."""
    yield from _opened(Backend("real", redis_server.port))


@pytest.fixture
def fresh(fresh_redis: RedisServer) -> Iterator[Backend]:
    """A real server of the test's own, as a backend."""
    yield from _opened(Backend("real", fresh_redis.port))


@pytest.fixture
def view(backend: Backend) -> redis.Redis:
    """A client that sees what is on the server without the library."""
    return backend.view


def _settings(request: pytest.FixtureRequest, backend: Backend) -> dict[str, Any]:
    marker = request.node.get_closest_marker("settings")
    settings: dict[str, Any] = dict(marker.kwargs) if marker else {}
    if settings.pop("own_timer", False):
        settings["timer"] = backend.timer()
    return settings


@pytest.fixture
def context(request: pytest.FixtureRequest, backend: Backend) -> LockContext:
    """A context on the backend, with the settings of the marker `settings`."""
    return backend.context(**_settings(request, backend))


@pytest.fixture
def other(backend: Backend) -> LockContext:
    """A second context on the same server, as another process would have one."""
    return backend.context()


@pytest.fixture
def through_proxy(request: pytest.FixtureRequest, real: Backend, proxy: TcpProxy) -> LockContext:
    """A context behind `proxy` that is connected, on a timer of its own."""
    context = connected(real.context_through(proxy, **{"timer": real.timer(), **_settings(request, real)}))
    with context.lock("warm-up"):
        pass
    return context


@pytest.fixture
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    """What makes event loops, of each kind that the marker `loops` names."""
    return loop_factory(request.param)


@pytest.fixture
def run(new_loop: NewLoop) -> Run:
    """What runs a coroutine in such a loop. A task that is left over, or an error that no task retrieves, is a failure."""
    return watched_run(new_loop)


log = fixture_of(logged)
"""What the library logs while the test runs."""


no_collection = fixture_of(without_collection)


@pytest.fixture
def new_timer() -> Iterator[NewTimer]:
    """Makes timers, and stops them when the test is over."""
    with ExitStack() as stack:

        def make(**options: Any) -> HashedWheelTimer:
            timer = HashedWheelTimer(**options)
            stack.callback(timer.stop)
            return timer

        yield make


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timer(new_timer: NewTimer, clock: ManualClock) -> HashedWheelTimer:
    """A timer with a thread, by a clock that the test moves."""
    return new_timer(clock=clock)


@pytest.fixture
def by_hand(new_timer: NewTimer, clock: ManualClock) -> HashedWheelTimer:
    """A timer without a thread: the test moves the clock, and then calls turn()."""
    return new_timer(clock=clock, threaded=False)


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    """Which API is used: that of threads, or that of tasks."""
    name: str = request.param
    return name


@pytest.fixture
def new_caller(backend: Backend, api: str) -> Iterator[NewCaller]:
    """What makes threads or tasks that live until the test ends. (Their contexts are closed later.)"""
    with callers(api) as new:
        yield new


@pytest.fixture
def me(new_caller: NewCaller, context: LockContext) -> Caller:
    """A thread or task that uses `context`."""
    return new_caller(context)


@pytest.fixture
def another(new_caller: NewCaller, context: LockContext) -> Caller:
    """A second thread or task that uses `context`."""
    return new_caller(context)


@pytest.fixture
def stranger(new_caller: NewCaller, other: LockContext) -> Caller:
    """One that uses `other`."""
    return new_caller(other)


@pytest.fixture
def swallowed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the interpreter has said that it swallowed: an exception in a finaliser, or in a callback of the collector."""
    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: said.append(str(what.exc_value)))
    return said
