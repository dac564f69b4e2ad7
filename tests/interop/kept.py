"""What is dear to fetch or to make: once, and kept between runs."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def kept(kept_in: Path, made_of: Iterable[bytes], make: Callable[[Path], Path | None]) -> Path:
    """The directory that `make` returns, or fills, in an empty one, or has made in an earlier run of the same."""
    there = kept_in / hashlib.sha256(b"".join(made_of)).hexdigest()[:16]
    if not there.exists():
        with tempfile.TemporaryDirectory(dir=kept_in) as workshop:
            made = Path(workshop) / there.name
            made.mkdir()
            made = make(made) or made
            try:
                made.rename(there)  # last, so that what was interrupted is not taken for whole
            except OSError:
                if not there.exists():
                    raise  # else another run was quicker
    return there
