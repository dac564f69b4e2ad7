"""redis-py's own tests, which only its source distribution holds: fetched once, checked, and kept between runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NoReturn

import pytest
import redis

from tests.interop.kept import kept
from tests.support.pinned_requirements import Pin, pins
from tests.support.redis_server import running_in_ci

FETCH_TIMEOUT_S = 120.0


def redis_pys_tests(kept_in: Path) -> Path:
    """The directory with the tests of the very redis-py that is installed, and the settings they run with.

    Without a network, or a sha256 of that version, the test that asks is skipped on a laptop, and fails where CI is set.
    """
    pin = _pin()
    made_of = [f"redis-{pin.version}".encode(), *(value.encode() for value in pin.sha256)]
    return kept(kept_in, made_of, lambda into: _unpack(download(pin, into), into))


def _pin() -> Pin:
    for pin in pins():
        if pin.package == "redis" and pin.version == redis.__version__:
            return pin
    _give_up(f"redis {redis.__version__} is installed, and requirements/dev.txt has no sha256 of its source")


def download(pin: Pin, into: Path) -> Path:
    """Fetch the source of a pinned package. What has another sha256 is a failure, everywhere."""
    wanted = f"{pin.package}=={pin.version}"
    requirements = into / "requirements.txt"
    requirements.write_text(" ".join([wanted, *(f"--hash=sha256:{value}" for value in pin.sha256)]))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "1"]
    # pip asks the source for its dependencies, even if they are not wanted. What it needs for that is installed: an
    # isolated build would fetch it, unchecked.
    source_only = ["--no-deps", "--no-binary", pin.package, "--no-build-isolation", "--require-hashes"]
    download = [*pip, "download", "--quiet", *source_only, "--dest", str(into), "--requirement", str(requirements)]
    try:
        done = subprocess.run(download, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
        words, failed = (done.stdout + done.stderr).strip(), done.returncode != 0
    except subprocess.TimeoutExpired:
        words, failed = f"no end after {FETCH_TIMEOUT_S:g} s", True
    if "DO NOT MATCH THE HASHES" in words:
        pytest.fail(f"the source of {wanted} has another sha256 than requirements/dev.txt:\n{words}", pytrace=False)
    if failed:
        _give_up(f"the source of {wanted}, which holds its own tests, could not be downloaded:\n{words}")
    return next(into.glob("*.tar.gz"))


def _give_up(message: str) -> NoReturn:
    if running_in_ci():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


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
