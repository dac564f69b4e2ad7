"""What the command line refuses: with one sentence on stderr, the right exit status, and never a credential."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib

import pytest

from tests.cli.lock_commands import Refused
from tests.cli.program import ROOT, start
from tests.support.ports import candidate_port
from tests.support.redis_server import RedisServer
from wheel_lock import __version__
from wheel_lock.cli import main

HOLD = ["hold", "--redis", "redis://127.0.0.1:1", "--locks", "5", "--timeout", "3", "--seconds", "1"]
NOWHERE = ["--redis", "redis://127.0.0.1:1"]
REFUSED = [
    *(
        ([*HOLD, "--locks", value], f"--locks must be a whole number of at least 1, not {value}")
        for value in ("0", "-3")
    ),
    *(
        ([*HOLD, "--locks", value], f"--locks must be a whole number of at least 1, not '{value}'")
        for value in ("many", "1.5")
    ),
    *(([*HOLD, "--seconds", value], "--seconds") for value in ("0", "-1", "inf", "soon")),
    *(([*HOLD, "--timeout", value], "--timeout") for value in ("nan", "inf", "0", "0.001", "x")),
    ([*HOLD, "--renew-every", "3"], "--renew-every must be less than"),
    (["demo", "--locks", "0"], "--locks must be a whole number of at least 1, not 0"),
    *((words, "") for words in (["hold"], ["nonsense"], ["demo", "--nonsense"], ["demo", "surplus"])),
    (["inspect", *NOWHERE], "NAME"),
    *((["watch", *NOWHERE, "x", "--interval", value], value) for value in ("0", "often")),
    (["watch", *NOWHERE, "x", "--seconds", "-1"], "-1"),
    (["run", "x", *NOWHERE, "--timeout", "0", "true"], "--timeout must be"),
    (["run", "x", *NOWHERE, "--wait", "-1", "true"], "--wait must be at least 0"),
    (["run", "x", *NOWHERE, "--margin", "6", "--timeout", "10", "true"], "at most half of the timeout, 5 s, not 6"),
    (["run", "x", *NOWHERE, "--grace", "nan", "true"], "--grace must be finite"),
    (["run", "x", *NOWHERE, "--signal", "NOSUCH", "true"], "must be a signal such as TERM or INT, not 'NOSUCH'"),
    (["run", "x", *NOWHERE, "--fence-env", "1X", "true"], "--fence-env must be the name of a variable, not '1X'"),
    *(
        (["top", *words], "")
        for words in (["x" * 200], ["--names", "-1"], ["--names", "many"], ["--every", "0"], ["1", "2"])
    ),
]


@pytest.mark.parametrize(
    ("arguments", "shown"), REFUSED, ids=lambda part: " ".join(part[-3:]) if isinstance(part, list) else ""
)
def test_a_bad_command_line_is_refused(refused: Refused, arguments: list[str], shown: str) -> None:
    status, sentence = refused(*arguments)
    assert (status, shown in sentence) == (2, True), sentence


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "http://localhost", "redis://localhost:port", "redis://localhost/zero", "redis://[::1",
     "redis://localhost:6379/0?nonsense=1", "redis://localhost:99999", "redis://localhost?socket_timeout=x"],
)  # fmt: skip
def test_a_malformed_url_is_refused(refused: Refused, url: str) -> None:
    status, sentence = refused(*HOLD, "--redis", url)
    assert status == 2
    scheme, _, rest = url.rpartition("://")
    assert sentence.endswith(f"not {f'{scheme}://***' if scheme else '***' if rest else ''!r}\n")


MALFORMED_WITH_SECRETS = [
    "redis://u5er:s3cret", "redis://:s3cret", "redis://u5er:s3cret/0", "redis://u5er:s3cret?db=1",
    "redis://u5er:s3/cret@127.0.0.1:1/0", "redis://u5er:s3?cret@127.0.0.1:1", "redis://u5er:s3#cret@127.0.0.1:1",
    "redis://u5er:s3?cret=x@127.0.0.1:1", "redis://u5er:s3@cret@127.0.0.1:port", "redis://u5er:[s3cret]@127.0.0.1:1",
    "redis://[s3cret", "redis://u5er:s3cret\uff20127.0.0.1:1", "redis://u5er:s3cret 127.0.0.1", "redis://u5er:s3\ncret",
    "redis://127.0.0.1:1:s3cret",
    "redis://127.0.0.1:1?s3cret=1", "redis:/u5er:s3cret@127.0.0.1:1",
    "redis:u5er:s3cret@127.0.0.1", "u5er:s3cret@127.0.0.1", "s3cret", "http://u5er:s3cret@127.0.0.1",
    "REDIS://u5er:s3cret@127.0.0.1", "redis+sentinel://u5er:s3cret",
    "redis+sentinel://u5er:s3cret/main", "redis+sentinel://u5er:s3@cret/main/zero", "redis+cluster://u5er:s3cret",
    "redis+cluster://127.0.0.1:1,u5er:s3cret", "rediss+cluster://u5er:s3cret@127.0.0.1:1/7", "valkey+other://u5er:s3cret@x",
]  # fmt: skip


def shows_no_part(text: str) -> bool:
    return not any(part in text for part in ("s3", "cret", "u5er"))


def test_no_refusal_shows_a_part_of_a_password(refused: Refused) -> None:
    urls = [*MALFORMED_WITH_SECRETS, "redis://127.0.0.1:1/s3cret", "redis://127.0.0.1:1/x?password=s3cret"]
    for command, url in [*(("ls", url) for url in urls), ("doctor", urls[0]), ("hold", urls[0])]:
        status, sentence = refused(command, "--redis", url)
        assert status == 2
        assert shows_no_part(sentence), url


def test_an_unknown_option_of_a_url_is_named(refused: Refused) -> None:
    status, sentence = refused("ls", "--redis", "redis://u5er:s3cret@127.0.0.1:1?sockettimeout=3")
    assert status == 2
    assert "--redis: unknown option 'sockettimeout' in the URL; is 'socket_timeout' meant?" in sentence
    assert shows_no_part(sentence)


@pytest.mark.parametrize("arguments", [["doctor"], ["hold", "--locks"], ["ls", "--every"], ["top", "a"], []])
def test_a_url_at_another_place_of_the_command_line_is_not_shown(refused: Refused, arguments: list[str]) -> None:
    status, sentence = refused(*arguments, "redis://u5er:s3 cret@127.0.0.1:1")
    assert status == 2
    assert shows_no_part(sentence)


def test_an_unreachable_server_is_named_without_credentials(refused: Refused) -> None:
    port = candidate_port()
    status, sentence = refused(*HOLD, "--redis", f"redis://user:secret@127.0.0.1:{port}/0")
    assert status == 1
    assert f"127.0.0.1:{port}" in sentence
    assert "secret" not in sentence
    status, sentence = refused(*HOLD, "--redis", "unix:///nowhere/redis.sock")
    assert (status, "/nowhere/redis.sock" in sentence) == (1, True)


def test_a_reader_of_stdout_that_ends_is_no_failure() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with start("bench", "--help", stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (141, "")


def test_a_disk_without_room_for_the_output_is_named() -> None:
    with open("/dev/full", "w") as full, start("bench", "--help", stdout=full, stderr=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, "wheel-lock: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("command", ["hold", "bench", "demo", "doctor"])
def test_a_keeper_that_is_not_possible_is_refused(
    redis_server: RedisServer, refused: Refused, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("WHEEL_LOCK_KEEPER", "x" * 200)
    status, sentence = refused(command, "--redis", redis_server.url)
    assert (status, "WHEEL_LOCK_KEEPER must be a path" in sentence) == (2, True)


def test_a_benchmark_needs_a_server(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHEEL_LOCK_REDIS", raising=False)
    status, sentence = refused("bench")
    assert (status, "name a server" in sentence) == (2, True)
    monkeypatch.setenv("WHEEL_LOCK_REDIS", f"redis://127.0.0.1:{candidate_port()}")
    status, sentence = refused("bench")
    assert (status, "cannot reach the server" in sentence) == (1, True)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"wheel-lock {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["demo", "--help"], ["hold", "--help"]])
def test_help_is_given(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 0
    assert "Usage: wheel-lock" in capsys.readouterr().out


EXTRAS = {"typer": "cli", "rich": "cli", "lupa": "demo", "fakeredis": "demo"}
WITHOUT = f"""
import sys
from wheel_lock.cli import main
for missing in {[*EXTRAS]}:
    sys.modules[missing] = None
    assert main(["demo"]) == 2
    del sys.modules[missing]
"""


@pytest.mark.slow
def test_a_missing_extra_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for (missing, extra), sentence in zip(EXTRAS.items(), done.stderr.splitlines(), strict=True):
        assert missing in sentence
        assert f"wheel-lock[{extra}]" in sentence


# The import of the package is interrupted, and swallows whatever the interruption raises.
INTERRUPTED = """
import os, signal, sys
class Strikes:
    def find_spec(self, name, path=None, target=None):
        if name == "wheel_lock":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                pass
sys.meta_path.insert(0, Strikes())
sys.argv = ["wheel-lock", "--version"]
import wheel_lock_command
sys.exit(wheel_lock_command.main())
"""


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_during_the_imports_is_one_line(ignored: bool) -> None:
    handler = signal.SIG_IGN if ignored else signal.default_int_handler
    before = signal.signal(signal.SIGINT, handler)  # a child inherits what is ignored
    try:
        done = subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    expected = (0, "") if ignored else (130, "wheel-lock: interrupted\n")
    assert (done.returncode, done.stderr) == expected


def test_the_program_is_the_module_that_answers_ctrl_c() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["scripts"] == {"wheel-lock": "wheel_lock_command:main"}
