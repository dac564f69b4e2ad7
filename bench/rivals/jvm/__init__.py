"""The rivals that need a JVM: Redisson's RLock, and the wheel alone of Netty's HashedWheelTimer.

Maven compiles the workers for Java 17 and newer and fetches their jars, all into ``target``. They run on the newest JDK at
hand: virtual threads came with 21. No flag is given to it, so the JVM chooses its heap and collector by the machine.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from bench.rivals.toolchain import LAST_LINES, NotFetched, alone
from tests.interop.redisson_jars import CHECKSUMS, unexpected

PROJECT = Path(__file__).parent
TARGET = PROJECT / "target"
BUILT = TARGET / "built"  # the sha256 of what it was built from
OLDEST = 17
JDKS = Path("/usr/lib/jvm")
BUILD_TIMEOUT_S = 300.0
MAIN = {"redisson": "bench.RedissonWorker", "netty-wheel": "bench.NettyWheelWorker"}

# Before them may be warnings of the JVM, and after them is where to read about Maven's errors.
_ERRORS = re.compile(r"\[ERROR\].*?(?=\s*(?:\[ERROR\]\s+)?\[ERROR\] To see the full|\Z)", re.DOTALL)
_OFFLINE = re.compile("Could not transfer|in offline mode")


def missing() -> str | None:
    """Return what is not installed, or None."""
    if _jdk() is None:
        return "no JDK"
    return None if shutil.which("mvn") else "no Maven"


def build() -> None:
    """Compile the workers and fetch what they need, unless that was done with the same sources.

    Raises:
        NotFetched: Something has to be fetched and cannot be.
        RuntimeError: Maven fails, or a jar is not the one whose sha256 is known.
    """
    with alone(PROJECT):
        sources = _sha256(PROJECT / "pom.xml", CHECKSUMS, *sorted(PROJECT.glob("src/**/*.java")))
        if not (BUILT.exists() and BUILT.read_text() == sources):
            _build()
            BUILT.write_text(sources)


def _build() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    maven = ["mvn", "--quiet", "--batch-mode", "--strict-checksums", "-Dstyle.color=never", "package"]
    try:
        done = subprocess.run(
            maven,
            cwd=PROJECT,
            env={**os.environ, "JAVA_HOME": str(_jdk())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise NotFetched(f"Maven has not ended in {BUILD_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        errors = _ERRORS.search(done.stdout)
        said = "\n".join((errors[0] if errors else done.stdout).strip().splitlines()[-LAST_LINES:])
        if _OFFLINE.search(done.stdout):
            raise NotFetched(f"Maven cannot reach its repository:\n{said}")
        raise RuntimeError(f"Maven has failed:\n{said}")
    wrong = unexpected(TARGET / "lib", CHECKSUMS)
    if wrong:
        raise RuntimeError(f"the jars are not those of {CHECKSUMS.name}: {', '.join(wrong)}")


def command(program: str) -> list[str]:
    """Return the command line of ``redisson`` or ``netty-wheel``, up to MODE."""
    return [f"{_jdk()}/bin/java", "-cp", f"{TARGET}/classes:{TARGET}/lib/*", MAIN[program]]


def java_version() -> str:
    """Return the version of the JDK that runs the workers, such as ``25.0.3``."""
    home = _jdk()
    return ".".join(map(str, _version(home))) if home else ""


@functools.cache
def _jdk() -> Path | None:
    """Return the directory of JAVA_HOME, or else of the newest JDK; none that is too old."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else [*JDKS.glob("*")]
    javac = shutil.which("javac")
    if javac is not None and not os.environ.get("JAVA_HOME"):
        homes.append(Path(javac).resolve().parent.parent)
    jdks = [home for home in homes if (home / "bin/javac").exists() and _version(home) >= (OLDEST,)]
    return max(jdks, key=_version, default=None)


def _version(home: Path) -> tuple[int, ...]:
    """Return the numbers of a JDK's version, as its file "release" says it."""
    release = home / "release"
    found = re.search(r'^JAVA_VERSION="([\d.]+)', release.read_text(), re.MULTILINE) if release.exists() else None
    return tuple(map(int, found[1].strip(".").split("."))) if found else ()


def _sha256(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
