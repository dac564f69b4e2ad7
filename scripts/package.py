"""Build the package into dist/ and check what was built (`make package`). Needs no network.

The wheel is built from the sdist, with the build tool of this environment. Then: `twine check --strict`; every file of the
package is in the wheel, and nothing else; the sdist has what it should have, and the same without a .git directory; the
wheel is installed into a fresh virtual environment, imported beside its required packages alone, and started beside those
of the extra `cli`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGE = "wheel_lock"
PROGRAM = "wheel_lock_command.py"
PROJECT = "wheel-lock"

# What an installation without extras must be able to do.
IMPORTS = f"""
import sys, {PACKAGE}
from importlib.metadata import version
assert {PACKAGE}.__file__.startswith(sys.prefix), {PACKAGE}.__file__
assert {PACKAGE}.__version__ == version("{PROJECT}") == sys.argv[1], {PACKAGE}.__version__
for name in {PACKAGE}.__all__ + ["asyncio", "guards", "observe", "redis_lock", "testing"]:
    getattr({PACKAGE}, name)
for extra in "fakeredis", "rich", "typer", "prometheus_client", "opentelemetry", "valkey", "sqlalchemy", "django":
    assert extra not in sys.modules, extra
"""

# In an sdist, besides the folders of the project: what the build tool adds itself.
IN_SDIST = {
    *("PKG-INFO", "pyproject.toml", ".gitignore", "LICENSE", "Makefile", "mkdocs.yml"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *(".ci", PACKAGE, PROGRAM, "tests", "bench", "docs", "scripts", "requirements"),
}
LEFTOVERS = re.compile(r"(^|/)(__pycache__|node_modules|target|\.\w+_cache|\.git|\.venv|dist|build)/|\.py[co]$")


class Wrong(Exception):
    """What was built is not as it should be; the text says what is wrong."""


def main(arguments: list[str]) -> int:
    """Build and check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the sdist and the wheel go")
    out = parser.parse_args(arguments).out.resolve()
    try:
        with tempfile.TemporaryDirectory() as folder:
            sdist, wheel = build(out)
            check_metadata(sdist, wheel)
            check_wheel(wheel)
            check_sdist(sdist, Path(folder))
            version = wheel.name.split("-")[1]
            check_installation(wheel, version, Path(folder))
    except Wrong as error:
        print(f"package: {error}", file=sys.stderr)
        return 1
    print(f"package: {sdist.name} and {wheel.name} are sound, in {out}")
    return 0


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a program of this environment and return what it prints. Raises Wrong if it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    """Return a small environment: nothing of the caller's, such as PYTHONPATH, may take part."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "SOURCE_DATE_EPOCH")
    return {"PYTHONDONTWRITEBYTECODE": "1", **{name: os.environ[name] for name in kept if name in os.environ}}


def build(out: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; return their paths."""
    if out.exists():
        for old in [*out.glob(f"{PACKAGE}-*.tar.gz"), *out.glob(f"{PACKAGE}-*.whl")]:
            old.unlink()
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source)
    (sdist,), (wheel,) = out.glob(f"{PACKAGE}-*.tar.gz"), out.glob(f"{PACKAGE}-*.whl")
    return sdist, wheel


def check_metadata(sdist: Path, wheel: Path) -> None:
    """Check the metadata, and that a package index can show the description, with links that lead somewhere from there."""
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        description = archive.read(name).decode()
    relative = re.findall(r"\]\((?!https?://|#|mailto:)([^)]*)\)", description)
    if relative:
        raise Wrong(
            f"the description has links that lead nowhere from the page of a package index: {', '.join(relative)}"
        )


def check_wheel(wheel: Path) -> None:
    """Check that the wheel has every file of the package, and no other."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {PROGRAM} | {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and not LEFTOVERS.search(path.relative_to(ROOT).as_posix())
    }
    if found != wanted:
        raise Wrong(f"the wheel lacks {sorted(wanted - found)}, and should not have {sorted(found - wanted)}")


def check_sdist(sdist: Path, folder: Path) -> None:
    """Check the files of the sdist, and that a checkout without a .git directory gives the same."""
    names = files_of(sdist)
    top = {PurePosixPath(name).parts[0] for name in names}
    if top != IN_SDIST:
        raise Wrong(f"the sdist lacks {sorted(IN_SDIST - top)}, and should not have {sorted(top - IN_SDIST)}")
    leftovers = sorted(name for name in names if LEFTOVERS.search(name))
    if leftovers:
        raise Wrong(f"the sdist has what programs left behind: {leftovers}")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob(f"{PACKAGE}-*")
    again, wheel = build(folder / "again", unpacked)
    if (other := files_of(again)) != names:
        raise Wrong(f"an sdist made without .git differs: {sorted(names ^ other)}")
    check_wheel(wheel)


def files_of(sdist: Path) -> set[str]:
    """Return the files of an sdist, relative to its one folder."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def check_installation(wheel: Path, version: str, folder: Path) -> None:
    """Install the wheel; import it beside its required packages, and run its command beside those of the extra."""
    home = folder / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    (packages,) = home.glob("lib/python*/site-packages")
    link(requirements(PROJECT), packages)
    run(python, "-W", "error", "-c", IMPORTS, version, cwd=folder)
    command = [str(home / "bin" / PROJECT), "--version"]
    bare = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment())
    if bare.returncode != 2 or f"pip install '{PROJECT}[cli]'" not in bare.stderr:
        raise Wrong(f"without the extra `cli` the command does not say what to install: {bare.stdout}{bare.stderr}")
    link(requirements(PROJECT, "cli"), packages)
    said = run(*command, cwd=folder)
    if version not in said:
        raise Wrong(f"{PROJECT} --version prints {said!r}, and the version is {version}")


def requirements(name: str, extra: str = "") -> dict[str, Distribution]:
    """Return the installed distributions that ``name`` needs, and those that these need, by name."""
    found: dict[str, Distribution] = {}
    wanted = list(required_by(distribution(name), extra))
    while wanted:
        requirement = wanted.pop()
        if requirement.name not in found:
            found[requirement.name] = known = distribution(requirement.name)
            for more in ["", *requirement.extras]:
                wanted.extend(required_by(known, more))
    return found


def required_by(known: Distribution, extra: str) -> Iterator[Requirement]:
    """Yield what a distribution requires here, with or without an extra."""
    for text in known.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def link(distributions: dict[str, Distribution], packages: Path) -> None:
    """Make the files of installed distributions importable from the folder ``packages``, too."""
    for known in distributions.values():
        for part in {file.parts[0] for file in known.files or () if file.parts[0] not in ("..", "__pycache__")}:
            target = Path(str(known.locate_file(part)))
            if target.exists() and not (packages / part).exists():
                (packages / part).symlink_to(target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
