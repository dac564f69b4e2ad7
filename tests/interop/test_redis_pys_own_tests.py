"""redis-py's own tests of its Lock pass with ours in its place, on a real server, all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import redis

import wheel_lock
from tests.interop.redis_pys_source import redis_pys_tests
from tests.support.redis_server import RedisServer

FILES = ("tests/test_lock.py", "tests/test_asyncio/test_lock.py")
PLUGIN = Path(__file__).parent / "plugin"
SUPPORT = Path(__file__).parents[1] / "support"
AS_OF_8_1 = 92
RUN_TIMEOUT_S = 110.0


@pytest.fixture(scope="session")
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache: pytest.Cache | None = getattr(request.config, "cache", None)  # where pytest runs with one
    return redis_pys_tests(tmp_path_factory.mktemp("redis-py") if cache is None else cache.mkdir("redis-py"))


def run(source: Path, server: RedisServer, report: Path) -> str:
    """Run the two files in a pytest of their own; return what it says."""
    packages = [str(PLUGIN), str(Path(wheel_lock.__file__).parents[1]), str(SUPPORT)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join(packages)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    # The second url would be tried for some time without success where no server with modules runs.
    servers = ["--redis-url", server.url, "--redis-mod-url", server.url]
    pytest_itself = [sys.executable, "-m", "pytest", "-p", "our_locks", "-p", "no:cacheprovider", "-q", "-rA"]
    done = subprocess.run(
        [*pytest_itself, *servers, f"--junitxml={report}", *FILES],
        cwd=source,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )
    return done.stdout


@pytest.mark.slow
def test_redis_pys_own_tests_pass_with_our_classes(source: Path, fresh_redis: RedisServer, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    said = run(source, fresh_redis, report)
    assert report.exists(), said
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    outcome = {what: int(suite.attrib[what]) for what in ("failures", "errors", "skipped")}
    # They have bounds of time that hold only where the machine lets them run; the plugin notes when it has not.
    beside_a_standstill = len(re.findall(r"^failed beside a standstill: ", said, re.MULTILINE))
    assert outcome["failures"] + outcome["errors"] == beside_a_standstill, said
    assert outcome["skipped"] == 0, said
    newer = tuple(int(part) for part in redis.__version__.split(".")[:2]) >= (8, 1)
    assert int(suite.attrib["tests"]) >= (AS_OF_8_1 if newer else 1), said
    # All of that would pass with redis-py's own classes as well, so these are counted.
    acquired = {name: int(times) for name, times in re.findall(r"^acquired with (\w+): (\d+)$", said, re.MULTILINE)}
    assert acquired.keys() == {"Lock", "PollingLock", "AsyncLock", "PollingAsyncLock"}, said
    assert all(acquired.values()), said
