"""The jars of Redisson that are known. (A worker of a benchmark imports this, and should not need pytest for it.)"""

from __future__ import annotations

import hashlib
from pathlib import Path

CHECKSUMS = Path(__file__).parent / "redisson" / "jars.sha256"
"""What `sha256sum *.jar` says of the jars that the pom names, and of those that these need in turn."""


def unexpected(folder: Path, checksums: Path) -> list[str]:
    """What in the folder is not as the file says: jars with another sha256, jars that are missing, and further files."""
    expected = {name: sha256 for sha256, name in map(str.split, checksums.read_text().splitlines())}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    wrong = [
        f"{name} has sha256 {found[name]}" for name in sorted(found.keys() & expected) if found[name] != expected[name]
    ]
    wrong += [f"{name} is missing" for name in sorted(expected.keys() - found)]
    return wrong + [f"{name} has no sha256 there" for name in sorted(found.keys() - expected)]
