"""What a Sentinel says about the master that it watches."""

from __future__ import annotations

from typing import Any

from tests.simulation.commands import Server
from tests.simulation.server import Refused, form

Address = tuple[str, int]


class Watch:
    """What one Sentinel knows.

    Attributes:
        epoch: The configuration epoch.
        address: The master; while the Sentinel leads a failover, the former one.
        promoted: While it leads a failover, the new master.
    """

    service = "locks"

    def __init__(self, address: Address) -> None:
        self.epoch = 0
        self.address = address
        self.promoted: Address | None = None

    def begin(self, epoch: int, promoted: Address) -> None:
        """Lead a failover, in which a replica has been made the master."""
        self.epoch = epoch
        self.promoted = promoted

    @property
    def promotion(self) -> str:
        assert self.promoted is not None
        (host, port), (old_host, old_port) = self.promoted, self.address
        return f"slave {host}:{port} {host} {port} @ {self.service} {old_host} {old_port}"

    def switch(self, epoch: int, address: Address) -> str:
        """Take over a master; return the message about that."""
        old = self.address
        self.epoch, self.address, self.promoted = epoch, address, None
        return f"{self.service} {old[0]} {old[1]} {address[0]} {address[1]}"

    def describe(self) -> list[bytes]:
        flags = "master" if self.promoted is None else "master,s_down,o_down,failover_in_progress"
        fields = {
            "name": self.service,
            "ip": self.address[0],
            "port": self.address[1],
            "runid": "",
            "flags": flags,
            "num-slaves": 2,
            "num-other-sentinels": 2,
            "quorum": 2,
            "config-epoch": self.epoch,
        }
        return [str(each).encode() for pair in fields.items() for each in pair]


@form(-2, "s")
def sentinel(server: Server, what: bytes, *words: bytes) -> Any:
    watch: Watch | None = server.watch
    if watch is None:
        raise Refused("ERR unknown command 'SENTINEL'")
    if what.upper() == b"MASTERS":
        return [watch.describe()]
    known = words[0].decode() == watch.service
    if what.upper() == b"GET-MASTER-ADDR-BY-NAME":
        host, port = watch.promoted or watch.address
        return [host.encode(), b"%d" % port] if known else None
    if what.upper() == b"MASTER":
        if not known:
            raise Refused("ERR No such master with that name")
        return watch.describe()
    raise Refused("ERR unknown subcommand")
