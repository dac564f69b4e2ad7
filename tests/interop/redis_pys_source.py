"""redis-py's own tests, which only its source distribution holds: fetched once, and kept between runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
import redis

from tests.support.redis_server import running_in_ci

FETCH_TIMEOUT_S = 120.0


def redis_pys_tests(kept_in: Path) -> Path:
    """The directory with the tests of the very redis-py that is installed, and the settings they run with.

    Without a network the test that asks is skipped on a laptop, and fails where CI is set.
    """
    source = kept_in / f"redis-{redis.__version__}"
    if not source.exists():
        with tempfile.TemporaryDirectory(dir=kept_in) as workshop:
            unpacked = _unpack(_download(Path(workshop)), Path(workshop))
            try:
                unpacked.rename(source)  # last, so that what was interrupted is not taken for whole
            except OSError:
                if not source.exists():
                    raise  # else another run was quicker
    return source


def _download(into: Path) -> Path:
    wanted = f"redis=={redis.__version__}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "1"]
    download = [*pip, "download", "--quiet", "--no-deps", "--no-binary", "redis", "--dest", str(into), wanted]
    try:
        done = subprocess.run(download, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
        words, failed = (done.stdout + done.stderr).strip(), done.returncode != 0
    except subprocess.TimeoutExpired:
        words, failed = f"no end after {FETCH_TIMEOUT_S:g} s", True
    if failed:
        message = f"the source of {wanted}, which holds redis-py's own tests, could not be downloaded:\n{words}"
        if running_in_ci():
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return next(into.glob("*.tar.gz"))


def _unpack(archive: Path, into: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(into / "all", filter="data")
    (top,) = (into / "all").iterdir()
    chosen = into / "chosen"
    chosen.mkdir()
    # Not the package itself: the tests are to import the redis-py that is installed.
    shutil.move(top / "tests", chosen / "tests")
    shutil.move(top / "pyproject.toml", chosen / "pyproject.toml")
    return chosen
