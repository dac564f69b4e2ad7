"""What requirements/dev.txt pins: versions, and the sha256 of each file that a package index may hand out for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

REQUIREMENTS = Path(__file__).parents[2] / "requirements"


class Pin(NamedTuple):
    """A version of a package, where its marker holds, and the hashes of its files."""

    package: str
    version: str
    marker: str
    sha256: tuple[str, ...]


def pins(lock: str = "dev.txt") -> list[Pin]:
    """Every pin of a lock file. A line that is neither a pin, nor a hash, nor a comment is an error."""
    found = []
    text = re.sub(r"^ *#.*\n", "", (REQUIREMENTS / lock).read_text(), flags=re.MULTILINE)
    for entry in re.split(r"(?<!\\)\n", text.strip()):
        line = " ".join(part.strip() for part in entry.split("\\\n"))
        match = re.fullmatch(r"([a-z0-9-]+)==([^ ;]+)(?: ; (.+?))?((?: --hash=sha256:[0-9a-f]{64})+)", line)
        assert match is not None, f"{lock}: {line}"
        package, version, marker, hashes = match.groups(default="")
        found.append(Pin(package, version, marker, tuple(re.findall(r"sha256:(\w+)", hashes))))
    return found
