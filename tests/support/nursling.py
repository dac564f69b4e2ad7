"""A program for the tests of the nursery."""

from __future__ import annotations

import atexit
import os
import sys
import time


def main(what: str, *fds: int) -> None:
    atexit.register(print, "and has ended")
    print(what, os.getpid(), sys.argv)
    print(what, file=sys.stderr)
    for fd in fds:
        os.write(fd, what.encode())
    if what == "waits":
        time.sleep(60.0)
    if what == "fails":
        sys.exit(3)
