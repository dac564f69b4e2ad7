"""The fixtures of wheel_lock.pytest_plugin, by the code that the page about testing shows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lock_types import KINDS, make
from wheel_lock import LossReason
from wheel_lock.pytest_plugin import fake_lock_context, lock_clock, lose  # noqa: F401
from wheel_lock.testing import FakeContext

ROOT = Path(__file__).parents[1]


def test_the_code_of_the_page_about_testing_passes(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "guide" / "testing.md").read_text(encoding="utf-8")
    files = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert text.count("```python") == len(files) == 6
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_of_any_kind_can_be_lost(kind: str, fake_lock_context: FakeContext, lose: Callable[[Any], None]) -> None:  # noqa: F811
    lock = make(fake_lock_context, kind, timeout=60.0)
    assert lock.acquire()
    lose(lock)
    assert not lock.is_held
    assert lock.lost is LossReason.KEY_GONE


def test_so_can_one_with_a_token_of_the_caller(fake_lock_context: FakeContext, lose: Callable[[Any], None]) -> None:  # noqa: F811
    lock = fake_lock_context.lock("x", timeout=60.0)
    lock.acquire(token="host-7")
    lose(lock)
    assert not lock.is_held
