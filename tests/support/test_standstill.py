"""What is noted as a standstill, and what is not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.support.standstill import Standstill, running

A_WHILE_S = 0.3

PROGRAM = """
import sys
from tests.support.standstill import Standstills
with Standstills() as standstills:
    print("ready", flush=True)
    sys.stdin.readline()
print(max((until - since for since, until in standstills.seen), default=0.0))
"""


@pytest.mark.slow
def test_a_stopped_process_stands_still() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)  # the thread naps
        process.send_signal(signal.SIGSTOP)
        time.sleep(A_WHILE_S)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.1)  # it wakes up
        longest, _ = process.communicate("\n")
    assert float(longest) > A_WHILE_S - 0.05


def test_what_is_left_of_a_time() -> None:
    seen = [Standstill(4.0, 6.0), Standstill(1.0, 2.0), Standstill(1.5, 3.0)]
    assert running(0.0, 10.0, seen) == pytest.approx(6.0)
    assert running(2.5, 5.0, seen) == pytest.approx(1.0)
    assert running(4.5, 5.0, seen) == 0.0
    assert running(7.0, 8.0, seen) == 1.0
    assert running(0.0, 0.5, []) == 0.5
