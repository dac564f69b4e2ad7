"""``wheel-lock run``: the status, the signals and the loss reach the command, and the lock outlives it."""

from __future__ import annotations

import logging
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis

from tests.cli.lock_commands import Refused
from tests.cli.program import ROOT
from tests.cli.test_demo import TERMINAL, Terminal
from tests.support.background import Background
from tests.support.fixtures import fixture_of
from tests.support.fork_server import Child as Program
from tests.support.fork_server import ForkServer
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually, state_of
from wheel_lock import LockContext, LossReason
from wheel_lock.cli import main, target
from wheel_lock.cli.run.child import Child
from wheel_lock.cli.run.signals import ENDING, Signals
from wheel_lock.cli.run.supervisor import LOST, Plan, Supervisor

NAME = "nightly"
LONG_S = 30.0
BRIEF = ("--timeout", "3", "--margin", "0")  # a loss is noticed within a second, and no standstill is one


class Started:
    """A running ``wheel-lock run``, and what it and its command write."""

    def __init__(self, program: Program, out: int, err: int) -> None:
        self._program = program
        self._out = os.fdopen(out)
        self._err = os.fdopen(err)
        self.pid = program.pid

    def line(self) -> str:
        return self._out.readline().rstrip("\n")

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the status and what has been written on stderr."""
        assert self._program.ends_within(LONG_S), "it has not ended"
        status = self._program.wait()
        return status, "" if self._err.closed else self._err.read()

    def close(self) -> None:
        self._program.kill()
        self._out.close()
        self._err.close()


class Run(Protocol):
    def __call__(self, *arguments: str, closed: str = "-", server: str | None = None) -> Started: ...


fork_server = fixture_of(lambda: ForkServer("tests.cli.run_program"), "module")


@pytest.fixture
def run(fork_server: ForkServer, redis_server: RedisServer) -> Iterator[Run]:
    """Starts ``wheel-lock run nightly`` with more arguments on the session's server."""
    started: list[Started] = []

    def start(*arguments: str, closed: str = "-", server: str | None = None) -> Started:
        out, err = os.pipe(), os.pipe()
        program = fork_server.start(
            closed, "run", NAME, "--redis", server or redis_server.url, *arguments, stdout=out[1], stderr=err[1]
        )
        os.close(out[1])
        os.close(err[1])
        started.append(Started(program, out[0], err[0]))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def client(redis_server: RedisServer) -> redis.Redis:
    return redis_server.admin


def shell(script: str) -> tuple[str, ...]:
    return "--", "/bin/sh", "-c", script


WAIT = "echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill $$", 143)])
def test_the_status_of_the_command_is_passed_on(run: Run, client: redis.Redis, script: str, status: int) -> None:
    assert run(*shell(script)).end() == (status, "")
    assert client.dbsize() == 0


def test_the_lock_is_held_until_the_command_has_ended(run: Run, client: redis.Redis) -> None:
    started = run(*shell("trap 'exit 3' USR1; " + WAIT))
    assert started.line() == "ready"
    assert client.pttl(NAME) > 0
    with LockContext(client) as context:
        holder = context.lock(NAME).holder()
    assert holder is not None
    assert holder.owner is not None
    assert holder.owner.endswith(f":{started.pid}:sh")
    started.send(signal.SIGUSR1)
    assert started.end() == (3, "")
    assert client.exists(NAME) == 0


def test_the_command_is_not_started_without_the_lock(run: Run, redis_server: RedisServer) -> None:
    with LockContext.from_url(redis_server.url, owner="billing", readable_owner=True) as context, context.lock(NAME):
        for wait, waited in (("0", ""), ("0.1", "; waited 0.1 s")):
            status, said = run("--wait", wait, *shell("echo started")).end()
            assert status == 75
            assert said.startswith("wheel-lock: the lock 'nightly' is held by billing for another ")
            assert said.endswith(f" s{waited}\n")


def test_it_waits_for_the_lock(run: Run, redis_server: RedisServer, client: redis.Redis) -> None:
    with LockContext.from_url(redis_server.url) as context:
        with context.lock(NAME):
            started = run(*shell("echo started"))
            eventually(lambda: client.pubsub_channels() != [], LONG_S)
        assert started.line() == "started"
        assert started.end() == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_the_waiting(run: Run, redis_server: RedisServer, client: redis.Redis, number: int) -> None:
    with LockContext.from_url(redis_server.url) as context, context.lock(NAME) as lock:
        started = run(*shell("echo started"))
        eventually(lambda: client.pubsub_channels() != [], LONG_S)
        started.send(number)
        status, said = started.end()
        assert status == 128 + number
        ended = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        assert said.splitlines()[-1] == f"wheel-lock: {ended}"
        assert started.line() == ""
        assert lock.owned()


def test_a_signal_in_a_finaliser_ends_the_waiting(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    class Finalised:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            assert self  # the handler has run

    find = target.find

    def late(url: str) -> target.Target:
        Finalised()
        return find(url)

    monkeypatch.setattr(target, "find", late)
    with LockContext.from_url(redis_server.url) as context, context.lock(NAME):
        status, sentence = refused("run", NAME, "--redis", redis_server.url, "--wait", "5", "true")
    assert (status, sentence) == (143, "wheel-lock: ended by SIGTERM\n")


def test_the_limit_of_the_wait_holds_for_a_silent_server(refused: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        status, sentence = refused("run", NAME, "--redis", url, "--wait", "0.2", "true")
    assert (status, sentence) == (1, "wheel-lock: the server has not answered; waited 0.2 s\n")


@pytest.mark.parametrize(("command", "status"), [("/no/such/program", 127), ("no-such-program", 127), (__file__, 126)])
def test_a_command_that_cannot_be_started(run: Run, client: redis.Redis, command: str, status: int) -> None:
    found, said = run("--", command).end()
    assert found == status
    assert said.startswith(f"wheel-lock: cannot run '{command}': ")
    assert client.dbsize() == 0


def test_a_fence_is_in_the_environment_if_asked_for(run: Run) -> None:
    fences = []
    for _ in range(2):
        started = run("--fence-env", "FENCE", *shell('echo "$FENCE"'))
        fences.append(int(started.line()))
        assert started.end() == (0, "")
    assert 0 < fences[0] < fences[1]


def test_signals_are_forwarded(run: Run) -> None:
    numbers = ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH", "CONT"]
    started = run(*shell("".join(f"trap 'echo {name}' {name}; " for name in numbers) + WAIT))
    assert started.line() == "ready"
    for name in numbers:
        started.send(signal.Signals[f"SIG{name}"])
        assert started.line() == name


# Programs to be stopped. No shells: while its child is stopped between vfork() and exec(), a shell waits for it
# uninterruptibly, and is not stopped. What the second one writes is not in the line that a terminal echoes.
UNTIL_USR1 = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: os._exit(5))
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""
UNTIL_TERM = (
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); print('rea' 'dy', flush=True); "
    "signal.sigwait([signal.SIGTERM]); print('noti' 'fied')"
)


def test_a_command_that_is_stopped_keeps_its_lock(run: Run, client: redis.Redis) -> None:
    started = run("--timeout", "3", "--", sys.executable, "-c", UNTIL_USR1)
    pid = int(started.line())
    started.send(signal.SIGTSTP)
    eventually(lambda: state_of(pid) == "T", LONG_S)
    assert state_of(started.pid) != "T"
    assert client.pttl(NAME) > 0
    started.send(signal.SIGUSR1)
    started.send(signal.SIGCONT)
    assert started.end() == (5, "")


def test_a_loss_is_reported_to_the_command(run: Run, client: redis.Redis) -> None:
    started = run(*BRIEF, "--signal", "usr2", *shell("trap 'echo lost; exit 0' USR2; " + WAIT))
    assert started.line() == "ready"
    client.set(NAME, "thief")
    assert started.line() == "lost"
    status, said = started.end()
    assert status == LOST == 76
    assert "wheel-lock: the lock is lost (taken by another): sent SIGUSR2 to the command" in said
    assert client.get(NAME) == b"thief"


def test_a_command_that_goes_on_is_killed_with_all_that_it_has_started(run: Run, client: redis.Redis) -> None:
    script = "trap '' TERM; sh -c 'while :; do sleep 0.05; done' & echo $!; wait"
    started = run(*BRIEF, "--grace", "0.1", *shell(script))
    inner = int(started.line())
    client.delete(NAME)
    status, said = started.end()
    assert status == 76
    assert "the command has not ended within 0.1 s: sent SIGKILL" in said
    eventually(lambda: has_ended(inner), LONG_S)


LEAVES = "trap '' {ignored}; sh -c 'while :; do sleep 0.05; done' & echo $!; {then}"


def has_ended(pid: int) -> bool:
    try:
        return state_of(pid) == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("ignored", "grace", "said"),
    [("HUP", "5", ["sent SIGTERM to them"]), ("TERM", "0.1", ["sent SIGTERM to them", "sent SIGKILL"])],
)
def test_what_a_command_leaves_behind_ends_before_the_release(
    run: Run, client: redis.Redis, ignored: str, grace: str, said: list[str]
) -> None:
    with LockContext(client) as context:
        started = run("--grace", grace, *shell(LEAVES.format(ignored=ignored, then="exit 3")))
        inner = int(started.line())
        with context.lock(NAME):
            assert has_ended(inner)
    status, messages = started.end()
    assert status == 3
    for message in said:
        assert message in messages


@pytest.mark.parametrize(
    ("ignored", "grace", "said"),
    [
        ("HUP", "5", "wheel-lock: wheel-lock was killed: sent SIGTERM to the command\n"),
        ("TERM", "0.1", "the command has not ended within 0.1 s: sending SIGKILL\n"),
    ],
)
def test_a_command_ends_with_all_it_has_started_when_wheel_lock_is_killed(
    run: Run, client: redis.Redis, ignored: str, grace: str, said: str
) -> None:
    started = run("--grace", grace, *shell(LEAVES.format(ignored=ignored, then="echo $$; wait")))
    inner, command = int(started.line()), int(started.line())
    eventually(lambda: guards_in(command) != [], LONG_S)
    started.send(signal.SIGKILL)
    eventually(lambda: has_ended(inner) and has_ended(command), LONG_S)
    status, messages = started.end()
    assert status == -signal.SIGKILL
    assert messages.endswith(said)
    assert client.pttl(NAME) > 0  # nobody is left who knows its token
    assert guards_in(command) == []


def guards_in(group: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "stat").read_text().rpartition(")")[2].split()
            if int(words[2]) == group and b"guard_program" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def test_a_command_that_has_left_its_group_ends_when_wheel_lock_is_killed(run: Run) -> None:
    moves = "import os, time; os.setpgid(0, os.getppid()); print(os.getpid(), flush=True); time.sleep(3600)"
    started = run("--", sys.executable, "-I", "-S", "-c", moves.replace("os.getppid()", "os.getpgid(os.getppid())"))
    command = int(started.line())
    eventually(lambda: len(guards_of(started.pid)) == 1 and ready(guards_of(started.pid)[0]), LONG_S)
    started.send(signal.SIGKILL)
    eventually(lambda: has_ended(command), LONG_S)


def guards_of(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"guard_program" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def ready(guard: int) -> bool:
    """Whether a guard waits for the end of its input: it has a descriptor of the command."""
    for fd in Path(f"/proc/{guard}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has been closed meanwhile
            if os.readlink(fd) == "anon_inode:[pidfd]":
                return True
    return False


def test_signals_to_the_group_do_not_end_the_guard(run: Run) -> None:
    started = run(*shell("trap '' INT TERM HUP QUIT USR1 USR2; echo $$; while :; do sleep 0.05; done"))
    command = int(started.line())
    eventually(lambda: guards_in(command) != [], LONG_S)
    for number in (*ENDING, signal.SIGUSR1, signal.SIGUSR2):
        os.killpg(command, number)
    started.send(signal.SIGTERM)
    assert len(guards_in(command)) == 1
    os.killpg(command, signal.SIGKILL)
    assert started.end()[0] == 137


@pytest.mark.parametrize("closed", ["2", "012"])
def test_closed_streams_change_nothing(run: Run, client: redis.Redis, tmp_path: Path, closed: str) -> None:
    notified = tmp_path / "notified"
    script = f"trap 'touch {notified}; exit 0' TERM; : > {tmp_path}/ready; while :; do sleep 0.05; done"
    started = run(*BRIEF, *shell(script), closed=closed)
    eventually((tmp_path / "ready").exists, LONG_S)
    assert client.exists(NAME)
    client.delete(NAME)
    assert started.end() == (76, "")
    assert notified.exists()


@pytest.mark.slow
def test_a_server_that_is_gone_at_the_end_is_reported(run: Run, fresh_redis: RedisServer) -> None:
    started = run(*shell("trap 'exit 6' USR1; " + WAIT), server=fresh_redis.url)
    assert started.line() == "ready"
    fresh_redis.kill()
    started.send(signal.SIGUSR1)
    status, said = started.end()
    assert status == 6
    assert "the lock is not released, it expires within 30 s" in said


def test_no_keeper_releases_the_lock_while_the_guard_ends_the_command(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    monkeypatch.setenv("WHEEL_LOCK_KEEPER", "/nowhere/keeper.sock")
    monkeypatch.setattr(Supervisor, "run", lambda self: kept.append(self._lock._engine.options.release_on_crash) or 0)
    assert main(["run", NAME, "--redis", redis_server.url, "true"]) == 0
    assert kept == [False]


def test_a_long_run_shows_each_warning(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(self: Supervisor) -> int:
        for number in range(30):
            logging.getLogger("wheel_lock").warning("outage %d", number)
        return 0

    monkeypatch.setattr(Supervisor, "run", warn)
    assert main(["run", NAME, "--redis", redis_server.url, "true"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"wheel-lock: outage {number}" for number in range(30)]


# -- the terminal ----------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal(80, 24)
    yield terminal
    terminal.end()


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@contextmanager
def in_session(terminal: Terminal, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a session of its own, whose terminal is ``terminal``. At the end all processes of it are killed."""
    program = (
        "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program, *command],
        stdin=terminal.theirs, stdout=terminal.theirs, stderr=terminal.theirs, cwd=ROOT, env=TERMINAL, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
            if session_of(pid) == process.pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait(LONG_S)


def command_line(server: RedisServer, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "wheel_lock.cli", "run", NAME, "--redis", server.url, *arguments]


@pytest.mark.slow
def test_a_command_may_read_from_the_terminal_and_ctrl_c_reaches_it(
    redis_server: RedisServer, terminal: Terminal, client: redis.Redis
) -> None:
    script = "trap 'exit 9' INT; echo ready; read word; echo got $word; while :; do sleep 0.05; done"
    with in_session(terminal, *command_line(redis_server, *shell(script))) as process:
        eventually(lambda: "ready" in terminal.text, LONG_S)
        terminal.type("word\n")
        eventually(lambda: "got word" in terminal.text, LONG_S)
        terminal.type("\x03")
        assert process.wait(LONG_S) == 9
    assert client.exists(NAME) == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="there is no bash")
def test_a_shell_stops_and_continues_the_job(
    redis_server: RedisServer, terminal: Terminal, client: redis.Redis
) -> None:
    """Ctrl-Z stops wheel-lock, too; a command that is continued after the end of the lease learns of that first."""
    with in_session(terminal, "/bin/bash", "--norc", "--noprofile", "-i") as shell_process:
        words = [*command_line(redis_server, *BRIEF, "--"), sys.executable, "-c", UNTIL_TERM]
        terminal.type(f"PYTHONPATH={ROOT} {shlex.join(words)}; echo status-$?\n")
        eventually(lambda: "ready" in terminal.text, LONG_S)
        terminal.type("\x1a")
        eventually(lambda: "Stopped" in terminal.text, LONG_S)
        eventually(lambda: not client.exists(NAME), LONG_S)
        terminal.type("fg; echo status-$?\n")
        eventually(lambda: "notified" in terminal.text and "status-76" in terminal.text, LONG_S)
        terminal.type("exit\n")
        shell_process.wait(LONG_S)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="there is no bash")
def test_a_message_does_not_stop_it_while_the_terminal_is_the_commands(
    redis_server: RedisServer, terminal: Terminal, client: redis.Redis
) -> None:
    with in_session(terminal, "/bin/bash", "--norc", "--noprofile", "-i"):
        script = "read word; echo got $word; while :; do sleep 0.05; done"
        line = shlex.join(command_line(redis_server, *shell(script)))
        terminal.type(f"stty tostop; PYTHONPATH={ROOT} {line}; echo status-$?\n")
        eventually(lambda: client.exists(NAME), LONG_S)
        terminal.type("word\n")
        eventually(lambda: "got word" in terminal.text, LONG_S)
        client.delete(NAME)
        eventually(lambda: "status-76" in terminal.text, LONG_S)


# -- the order, with a lock that the test makes ------------------------------------------------------------------------


class MadeLock:
    """A lock whose answers a test sets."""

    def __init__(self) -> None:
        self.lost: LossReason | None = None
        self.left_s = 60.0

    def remaining(self) -> float:
        if self.left_s < 0:
            raise MemoryError
        return self.left_s


def supervised(script: str, ready: Path, margin_s: float = 0.0, **changed: object) -> tuple[int, list[str]]:
    """Run a script under a made lock, which changes when ``ready`` exists. Return the status and what is said."""
    lock: Any = MadeLock()
    said: list[str] = []
    plan = Plan(["/bin/sh", "-c", script], {}, margin_s, 5.0, signal.SIGTERM)
    with Signals() as signals:

        def change() -> None:
            eventually(ready.exists, LONG_S)
            vars(lock).update(changed)
            signals.wake()

        changing = Background(change)
        try:
            return Supervisor(lock, plan, signals, said.append).run(), said
        finally:
            changing.result()


def test_the_margin_is_kept(tmp_path: Path) -> None:
    script = f": > {tmp_path}/ready; while :; do sleep 0.05; done"
    status, said = supervised(script, tmp_path / "ready", 2.5, left_s=2.5)
    assert status == LOST
    assert said == ["the lock is not confirmed, 2.5 s are left: sent SIGTERM to the command"]


def test_an_error_of_the_supervision_kills_the_command(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; while :; do sleep 0.05; done"
    with pytest.raises(MemoryError):
        supervised(script, tmp_path / "pid", left_s=-1.0)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_command_that_has_left_its_group_is_notified_of_the_loss(tmp_path: Path) -> None:
    moves = f"import os, time; os.setpgid(0, {os.getpgrp()}); open('{tmp_path}/ready', 'w').close(); time.sleep(3600)"
    script = f"exec {shlex.join([sys.executable, '-I', '-S', '-c', moves])}"
    status, said = supervised(script, tmp_path / "ready", lost=LossReason.KEY_GONE)
    assert status == LOST
    assert said == ["the lock is lost (key gone): sent SIGTERM to the command"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_that_meets_the_end_of_the_command_leaves_it_its_status(number: int) -> None:
    child = Child(["/bin/sh", "-c", "exit 7"], {})
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    child.forward(number)
    assert not child.look()
    assert child.status == 7
    child.forward(number)  # dropped


def test_a_signal_from_before_the_start_prevents_it(tmp_path: Path) -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        plan = Plan(["/bin/sh", "-c", f": > {tmp_path}/started"], {}, 0.0, 5.0, signal.SIGTERM)
        lock: Any = MadeLock()
        assert Supervisor(lock, plan, signals, print).run() == 143
    assert not (tmp_path / "started").exists()


ORPHANS = """
import os, time
os.getpid = lambda: 1
orphan = os.spawnvp(os.P_NOWAIT, "true", ["true"])
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
from wheel_lock.cli.run.child import Child
child = Child(["/bin/sh", "-c", "exit 7"], os.environ)
while child.status is None:
    child.look()
    time.sleep(0.01)
assert child.status == 7
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("reaped")
"""


def test_the_first_process_of_a_container_reaps_orphans() -> None:
    # In a process of its own, because every child of it is reaped.
    done = subprocess.run([sys.executable, "-c", ORPHANS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "reaped\n", done.stderr


def test_signals_are_waited_for_beside_very_many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 1024:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        with Signals() as signals:
            signals.wake()
            assert signals.wait(LONG_S) == []
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_handlers_are_restored() -> None:
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as under nohup
            assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert before == {number: signal.getsignal(number) for number in before}
