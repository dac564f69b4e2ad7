"""Port numbers for servers that tests start, stop and start again on the same port."""

from __future__ import annotations

import os
import random
import socket

# Below the range that the kernel hands out to outgoing connections (from 32768 on Linux). A port inside that
# range may, while its server is down, become the local port of the very client that tries to reconnect to
# it: TCP then connects the client to itself. port + 10000, the bus of a cluster node, is below it as well.
FIRST_PORT = 11_000
LAST_PORT = 22_000

# Where several processes run tests each has a share of its own: the port of a server that is down stays its own.
_SHARE = (LAST_PORT - FIRST_PORT) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_FIRST = FIRST_PORT + _SHARE * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))

# Of its own, because hypothesis seeds the shared one before each example and would make every run pick alike.
_random = random.Random()


def candidate_port() -> int:
    """A port that was free a moment ago. Whoever binds it must be ready to lose the race and ask again."""
    for _ in range(1_000):
        port = _random.randrange(_FIRST, _FIRST + _SHARE)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port between {FIRST_PORT} and {LAST_PORT}")
