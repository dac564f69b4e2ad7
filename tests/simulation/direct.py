"""The direct path in the simulation: what its connection, in the caller's own thread, is given in place of the system."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import wheel_lock.engine.direct.connection
import wheel_lock.engine.direct.path
import wheel_lock.engine.engine

if TYPE_CHECKING:
    from tests.simulation.network import Sock
    from tests.simulation.world import World
    from wheel_lock.engine.engine import Engine

_READ = selectors.EVENT_READ
_path, _connection = wheel_lock.engine.direct.path, wheel_lock.engine.direct.connection

# Few acquires are worth a connection, and the path rests for a moment only, because a history has few acquires.
SMALL: tuple[tuple[Any, str, int], ...] = ((_connection, "_WORTH_IT", 1), (_path, "_REST", 1))


class Poll:
    """Stands for ``select.poll``: a caller waits for one socket."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sock: Sock | None = None

    def register(self, sock: Sock, events: int) -> None:
        self._sock = sock

    def poll(self, limit_ms: float) -> list[Sock]:
        sock, caller = self._sock, self._world.caller
        assert sock is not None
        assert caller is not None
        if not sock.ready(_READ):
            sock.on_ready = partial(
                caller.process.after, caller.process.delay_s(), partial(caller.resume, caller.ticket)
            )
            try:
                caller.wait(limit_ms / 1000)
            finally:
                sock.on_ready = caller.process.poke
        return [sock] if sock.ready(_READ) else []


def replacements(world: World) -> list[tuple[Any, str, Any]]:
    """Return objects, names of their attributes, and what stands for those during a simulation."""

    def fits(engine: Engine) -> bool:
        options = engine.options
        kept_off = options.max_held is not None or options.watch or options.declare_keys
        return world.settings.direct and not kept_off

    def receiver(sock: Sock, most: int) -> Callable[[], bytes]:
        return partial(sock.recv, most)

    return [
        (wheel_lock.engine.engine, "fits", fits),
        (_connection, "ask_run_id", lambda connection, until: connection._sock.wire.link.host.server.run_id),
        (_path, "sys", SimpleNamespace(modules={})),
        (_connection, "sender", lambda sock: sock.send),
        (_connection, "receiver", receiver),
        (_connection, "BriefWait", lambda sock, may_wait: SimpleNamespace(possible=False)),
        (_connection, "select", SimpleNamespace(poll=partial(Poll, world), POLLIN=_READ)),
    ]
