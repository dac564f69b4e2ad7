"""``wheel-lock demo``: as lines in a pipe, as a picture on a terminal, and honest in both."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios

import pytest

from tests.cli.program import start
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock.cli import main

pytestmark = pytest.mark.slow


def test_the_embedded_server_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--locks", "200", "--timeout", "2", "--seconds", "0.8"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "one thread" in said.out
    assert re.search(r"^ +0\.8 s  held 200  lost 0  renewals ", said.out, re.MULTILINE)
    assert re.search(r"^ +lost +0\b", said.out, re.MULTILINE)
    assert re.search(r"^ +owned at end +200\b", said.out, re.MULTILINE)
    assert said.out.splitlines()[-1] == "Nothing was lost: the server says that all 200 were ours at the end."
    assert said.out.isascii()


TERMINAL = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLUMNS": "", "LINES": ""}
TERMINAL.pop("NO_COLOR", None)


class Terminal:
    """A pseudo-terminal, and all that has been written to it."""

    def __init__(self, columns: int, lines: int) -> None:
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._data = bytearray()
        self._reading = Background(self._read)

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 65536):
                self._data += data
        except OSError:
            pass  # EIO: the other end is closed

    @property
    def text(self) -> str:
        """What is on it, without escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._data.decode("utf-8", "replace"))

    def start(self, *arguments: str, env: dict[str, str] = TERMINAL) -> subprocess.Popen[str]:
        """Start ``wheel-lock`` with ``arguments`` on it."""
        return start(*arguments, stdin=self.theirs, stdout=self.theirs, stderr=self.theirs, env=env)

    def shown_by(self, *arguments: str, env: dict[str, str] = TERMINAL) -> str:
        """Return what ``wheel-lock`` shows there until its end, which is a good one."""
        status = self.start(*arguments, env=env).wait(timeout=60)
        text = self.end()
        assert status == 0, text
        return text

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> None:
        eventually(lambda: text in self.text)

    @property
    def shows_its_cursor(self) -> bool:
        """Whether the cursor was shown after it was hidden for the last time."""
        return self._data.rfind(b"\x1b[?25h") > self._data.rfind(b"\x1b[?25l")

    def end(self) -> str:
        """Return the text once all writers have closed."""
        os.close(self.theirs)
        self._reading.result()
        os.close(self._ours)
        return self.text


@pytest.mark.parametrize(("columns", "lines", "colour", "drawn"), [(80, 24, True, "▀"), (60, 18, False, "▼")])
def test_a_terminal_shows_the_wheel(
    redis_server: RedisServer, columns: int, lines: int, colour: bool, drawn: str
) -> None:
    environment = TERMINAL if colour else {**TERMINAL, "NO_COLOR": "1"}
    arguments = ["demo", "--redis", redis_server.url, "--locks", "200", "--timeout", "2", "--seconds", "0.8"]
    text = Terminal(columns, lines).shown_by(*arguments, env=environment)
    assert drawn in text
    assert "time left" in text
    assert "Nothing was lost" in text


def test_ctrl_c_on_a_terminal_still_gives_the_summary(redis_server: RedisServer) -> None:
    terminal = Terminal(80, 24)
    arguments = ["demo", "--redis", redis_server.url, "--locks", "100", "--timeout", "30", "--seconds", "60"]
    process = terminal.start(*arguments)
    eventually(lambda: "due next" in terminal.text, 20.0)
    process.send_signal(signal.SIGINT)
    status = process.wait(timeout=20)
    text = terminal.end()
    assert status == 130, text
    assert "Stopped by Ctrl-C" in text
    assert redis_server.admin.dbsize() == 0
