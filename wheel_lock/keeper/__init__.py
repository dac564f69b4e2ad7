"""The keeper: a process that releases the locks of another one as soon as the kernel proves its death.

``record.py`` is what the other process writes before each command that may give it a lock, ``keeping.py`` its side of the
socket, ``child.py`` how it finds or starts a keeper, and ``program.py`` the keeper itself: with ``entries.py``, which reads
a record, ``burial.py``, the passes after a death, ``server.py``, a server that they ask, ``tls.py``, and ``crew.py``, its
threads. Imported by contexts with ``release_on_crash`` only.
"""

from __future__ import annotations

import os
from pathlib import Path

PROGRAM: Path = Path(__file__).with_name("program.py")
NEEDS: str = "needs Linux, with pidfd_open() and memfd_create()"


def is_possible() -> bool:
    """Return whether this system has what keepers need."""
    return hasattr(os, "pidfd_open") and hasattr(os, "memfd_create")
