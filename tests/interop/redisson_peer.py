"""A Java service with Redisson's locks, as a process of its own: fetched and compiled once, and kept between runs."""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self
from xml.etree import ElementTree

import pytest

from tests.interop.kept import kept
from tests.interop.redisson_jars import CHECKSUMS, unexpected

PROJECT = Path(__file__).parent / "redisson"
POM = PROJECT / "pom.xml"
SOURCE = PROJECT / "src/main/java/wheellock/LockPeer.java"
FETCH_TIMEOUT_S = 110.0
COMPILE_TIMEOUT_S = 60.0
START_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 10.0
WATCHDOG_S = 30.0
"""Redisson's own default."""

# Little is run for long: quick to start is better than quick in the end.
_JVM = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")


def redisson_version() -> str:
    dependency = "{*}dependencies/{*}dependency[{*}artifactId='redisson']/{*}version"
    version = ElementTree.parse(POM).getroot().findtext(dependency)
    assert version is not None
    return version


def class_path(kept_in: Path) -> str:
    """Where java finds LockPeer and its jars: what is not in `kept_in` yet is compiled, or fetched, into it.

    Without a JDK, without Maven, or without a network when it is needed, the test that asks is skipped. A jar that has
    another sha256 than the one in jars.sha256 is a failure.
    """
    if shutil.which("java") is None or shutil.which("javac") is None:
        pytest.skip("no JDK (java, javac) here")
    pinned = [POM.read_bytes(), CHECKSUMS.read_bytes()]
    jars = kept(kept_in, pinned, _fetch)
    classes = kept(kept_in, [*pinned, SOURCE.read_bytes()], lambda into: _compile(f"{jars}/*", into))
    return f"{classes}:{jars}/*"


def _compile(jars: str, into: Path) -> None:
    compiler = ["javac", "-Xlint:all", "-Werror", "--release", "17", "-proc:none", "-cp", jars]
    failure = _failure([*compiler, "-d", str(into), str(SOURCE)], COMPILE_TIMEOUT_S)
    if failure is not None:
        pytest.fail(f"{SOURCE.name} cannot be compiled:\n{failure}", pytrace=False)


def _fetch(into: Path) -> None:
    """Copy the jars from where Maven keeps them, or, if they are not all there, have it fetch them first."""
    if shutil.which("mvn") is None:
        pytest.skip("no Maven (mvn) here")
    maven = ["mvn", "--quiet", "--batch-mode", "--strict-checksums", "-Dstyle.color=never", "--file", str(POM)]
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    if _failure([*maven, "--offline", *copy], FETCH_TIMEOUT_S) is not None:
        failure = _failure([*maven, *copy], FETCH_TIMEOUT_S)
        if failure is not None:
            what_went_wrong = failure.partition("\n")[0]
            pytest.skip(f"Redisson {redisson_version()} could not be fetched: {what_went_wrong}")
    wrong = unexpected(into, CHECKSUMS)
    if wrong:
        pytest.fail(f"the jars of Redisson are not those of {CHECKSUMS.name}: {', '.join(wrong)}", pytrace=False)


def _failure(command: list[str], timeout_s: float) -> str | None:
    """Run it; return what it has said if it has failed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {timeout_s:g} s"
    return done.stdout.strip() if done.returncode != 0 else None


class JavaError(Exception):
    """What Redisson has thrown."""


class Answer(NamedTuple):
    """What a call has returned, and when it began and ended: time.monotonic_ns(), read in Java."""

    value: int
    began_ns: int
    ended_ns: int


class LockPeer:
    """A running LockPeer. Use it in a `with`: it is gone at the end, with its locks left to expire."""

    def __init__(self, class_path: str, port: int, watchdog_s: float = WATCHDOG_S) -> None:
        self._ready: Future[None] = Future()
        self._open: dict[str, list[Future[Answer]]] = {}
        self._numbers = itertools.count(1)
        command = [*_JVM, "-cp", class_path, "wheellock.LockPeer", str(port), str(round(watchdog_s * 1000))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1, encoding="utf-8"
        )
        self._reader = threading.Thread(target=self._read, name="lock-peer-reader", daemon=True)
        self._reader.start()
        try:
            self._ready.result(START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    def thread(self) -> JavaThread:
        """Another thread: Redisson's locks belong to threads."""
        return JavaThread(self, f"thread-{next(self._numbers)}")

    def ask(self, thread: str, command: str, lock: str, *numbers: int) -> Future[Answer]:
        assert self._process.stdin is not None
        answer: Future[Answer] = Future()
        self._open.setdefault(thread, []).append(answer)
        self._process.stdin.write(" ".join([thread, command, lock, *map(str, numbers)]) + "\n")
        return answer

    def kill(self) -> None:
        """SIGKILL: no lock is released, and no connection is closed in order. May be called twice."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # of a command that it did not live to read
            self._process.stdin.close()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                self._ready.set_result(None)
            else:
                self._answered(*line.rstrip("\n").split(" ", 3))
        self._ended()

    def _answered(self, thread: str, began_ns: str, ended_ns: str, result: str) -> None:
        answer = self._open[thread].pop(0)  # a thread does one thing after the other
        if result in ("true", "false"):
            answer.set_result(Answer(result == "true", int(began_ns), int(ended_ns)))
        elif result.lstrip("-").isdigit():
            answer.set_result(Answer(int(result), int(began_ns), int(ended_ns)))
        else:
            answer.set_exception(JavaError(result))

    def _ended(self) -> None:
        ended = JavaError("LockPeer has ended")
        if not self._ready.done():
            self._ready.set_exception(ended)
        for answers in self._open.values():
            for answer in answers:
                answer.set_exception(ended)


class JavaThread:
    """One thread of a LockPeer, with the methods of Redisson's RLock. Times are in seconds."""

    def __init__(self, peer: LockPeer, name: str) -> None:
        self._ask = functools.partial(peer.ask, name)

    def begin_lock(self, lock: str) -> Future[Answer]:
        """Begin to wait for it. It is renewed until it is unlocked."""
        return self._ask("lock", lock)

    def lock(self, lock: str) -> Answer:
        return self.begin_lock(lock).result(ANSWER_TIMEOUT_S)

    def try_lock(self, lock: str, wait_s: float = 0.0) -> bool:
        return bool(self._ask("tryLock", lock, round(wait_s * 1000)).result(wait_s + ANSWER_TIMEOUT_S).value)

    def unlock(self, lock: str) -> Answer:
        return self._ask("unlock", lock).result(ANSWER_TIMEOUT_S)

    def hold_count(self, lock: str) -> int:
        return self._ask("holdCount", lock).result(ANSWER_TIMEOUT_S).value

    def is_locked(self, lock: str) -> bool:
        """Whether anybody holds it."""
        return bool(self._ask("isLocked", lock).result(ANSWER_TIMEOUT_S).value)

    def is_held(self, lock: str) -> bool:
        """Whether this thread holds it."""
        return bool(self._ask("isHeld", lock).result(ANSWER_TIMEOUT_S).value)
