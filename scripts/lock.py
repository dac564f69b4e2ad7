"""Renew requirements/*.txt: every version that scripts/setup.sh installs, with its sha256 (`make lock`).

Run in .venv. The files hold for each Python version and platform at once (environment markers choose), name no package
index, and have the same version of whatever is in several; only redis-py is the oldest supported one in oldest.txt.
Arguments are handed to uv instead of --upgrade, for example --upgrade-package django.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEV = "requirements/dev.txt"
DEMO = "requirements/demo.txt"
OLDEST = "requirements/oldest.txt"
FOR_OLDEST = ("hypothesis", "pytest", "pytest-benchmark", "pytest-xdist", "trio", "trustme", "uvloop")
"""What the tests of the kinds of locks need, beside the extras demo and valkey."""

HEADER = """\
# python: {versions}
# What scripts/setup.sh {kind} installs on the Python versions of the first line, for pip --require-hashes.
# Made by `make lock`; not to be edited.
"""


def main(arguments: list[str]) -> None:
    """Write the files; the arguments are uv's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    versions = locked_pythons(project["project"]["classifiers"])
    how = arguments or ["--upgrade"]
    # The build backend is locked as well, since the project is installed with --no-build-isolation. `editables` is what
    # hatchling asks for when an installation is to be editable.
    build_tools = "\n".join([*project["build-system"]["requires"], "editables"])
    lock(DEV, "dev", versions, build_tools, ["--extra", "dev", *how])
    lock(DEMO, "demo", versions, build_tools, ["--extra", "demo", "--extra", "cli", "--constraint", DEV, *how])
    bound = "redis==" + lower_bound("redis", project["project"]["dependencies"])
    others = [line for line in (ROOT / DEV).read_text().splitlines() if "==" in line and name_of(line) != "redis"]
    tools = [text for text in project["project"]["optional-dependencies"]["dev"] if name_of(text) in FOR_OLDEST]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join([bound, *(line.rstrip(" \\") for line in others)]))
        constraints.flush()
        # Without annotations, which would name that file.
        extras = ["--extra", "demo", "--extra", "valkey", "--no-annotate", "--constraint", constraints.name]
        lock(OLDEST, "oldest", versions, "\n".join([build_tools, *tools]), [*extras, *how])


def name_of(requirement: str) -> str:
    """Return the name of a package in a requirement such as ``redis>=7.0.1,<9``."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def lower_bound(package: str, requirements: list[str]) -> str:
    """Return the oldest version of ``package`` that ``requirements`` allow."""
    (text,) = (text for text in requirements if name_of(text) == package)
    (bound,) = re.findall(r">=\s*([\w.]+)", text)
    return str(bound)


def locked_pythons(classifiers: list[str]) -> list[str]:
    """Return the versions that pyproject.toml names, such as 3.11: of a later one the wheels may not exist yet."""
    numbers = [
        text.rpartition(" :: ")[2] for text in classifiers if text.startswith("Programming Language :: Python ::")
    ]
    return [number for number in numbers if number.replace(".", "").isdigit()]


def lock(path: str, kind: str, versions: list[str], build_tools: str, arguments: list[str]) -> None:
    """Have uv resolve what pyproject.toml asks for, together with the build tools, and write it into one file."""
    target = ROOT / path
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-header"]
    uv += ["--python-version", versions[0], "--output-file", path]
    subprocess.run(
        [*uv, *arguments, "pyproject.toml", "-"], input=build_tools, text=True, cwd=ROOT, env=environment(), check=True
    )
    target.write_text(HEADER.format(versions=" ".join(versions), kind=kind) + without_header(target.read_text()))


def without_header(text: str) -> str:
    """Return a lock file without the comments that it begins with: they are those of the last time."""
    lines = text.splitlines(keepends=True)
    while lines and lines[0].startswith("#"):
        del lines[0]
    return "".join(lines)


def environment() -> dict[str, str]:
    """uv asks the package index that pip is configured for, which it does not read by itself."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True
    )
    index = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip()
    return {**os.environ, "UV_DEFAULT_INDEX": index} if index else dict(os.environ)


if __name__ == "__main__":
    main(sys.argv[1:])
