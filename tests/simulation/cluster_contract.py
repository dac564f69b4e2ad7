"""Random commands and scripts, sent to nodes of a real cluster and to the model of them, while a slot moves key by key.

python -m tests.simulation.cluster_contract SEQUENCES [SEED]     with the server that REDIS_SERVER names
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import redis

from tests.simulation.cluster_commands import Address, SlotTable, move_key
from tests.simulation.contract import Model, Peer, Words, plain_command, same, script_call, shown
from tests.simulation.lua import Lua
from tests.support.redis_server import RedisServer, redis_server_version
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import LONG_S, MASTERS, Nodes
from wheel_lock.protocol.keys import SLOTS, hash_slot

_SLOT = hash_slot(b"b")  # the slot of the first master, and of one of the names in commands
_CHANNEL = b"{b}channel"
_COMMANDS = 40
_TRIES = 5  # attempts: a late message of a node about an earlier move may come in between


class Pair:
    """A node of a real cluster, and the model of it."""

    def __init__(self, server: RedisServer, lua: Lua, owners: list[Address | None]) -> None:
        self.real = server
        self.address = ("127.0.0.1", server.port)
        self.peer, self.listener = Peer(server.port), Peer(server.port)
        self.model, self.model_listener = Model(lua, flagged=True), []  # type: ignore[var-annotated]
        self.slots = self.model.server.slots = SlotTable(self.address, owners)
        self.heard = self.model.server.connect(self.model_listener.append)

    def ask(self, words: Words) -> tuple[Any, Any]:
        """Return the replies of both."""
        [time] = self.listener.ask([b"TIME"])  # not there, where it would use up an ASKING
        [real] = self.peer.ask(words)
        self.model.now_us = int(time[0]) * 1_000_000 + int(time[1])
        return real, self.model.ask(words)

    def set_slot(self, *words: str) -> None:
        self.real.admin.execute_command("CLUSTER", "SETSLOT", _SLOT, *words)

    def close(self) -> None:
        self.peer.close()
        self.listener.close()


class Move:
    """A slot that moves from one node to another, a step at a time."""

    def __init__(self, nodes: Nodes, here: Pair, there: Pair, others: list[Pair]) -> None:
        self._nodes = nodes
        self._source, self._target = here, there
        self._all = [here, there, *others]
        self.begun = self.over = False

    def step(self) -> None:
        """Begin, or move a key, or end if there is none left."""
        source, target = self._source, self._target
        if self.over:
            return
        if not self.begun:
            self.begun = True
            target.set_slot("IMPORTING", self._nodes.id_of(source.real))
            source.set_slot("MIGRATING", self._nodes.id_of(target.real))
            target.slots.importing[_SLOT] = source.address
            source.slots.migrating[_SLOT] = target.address
            return
        keys: Any = source.real.admin.execute_command("CLUSTER", "GETKEYSINSLOT", _SLOT, 1)
        if not keys:
            self._end()
        for key in keys:
            place = "127.0.0.1", target.real.port
            source.real.admin.execute_command("MIGRATE", *place, key, 0, 5000, "REPLACE")
            move_key(source.model.server, target.model.server, key.encode() if isinstance(key, str) else key)

    def _end(self) -> None:
        target = self._target
        for pair in [target, *self._all]:
            pair.set_slot("NODE", self._nodes.id_of(target.real))
            pair.slots.owners[_SLOT] = target.address
            pair.slots.migrating.clear()
            pair.slots.importing.clear()
            mine = pair is target
            pair.model.server.leave_slot(lambda channel: not mine and hash_slot(channel) == _SLOT)  # noqa: B023
        self.over = True


def _epoch(pair: Pair) -> int:
    """Return the epoch with which a node claims its slots."""
    [text] = pair.listener.ask([b"CLUSTER", b"INFO"])
    return int(text.partition(b"cluster_my_epoch:")[2].split()[0])


def _begin_anew(nodes: Nodes, pairs: list[Pair]) -> bool:
    """Have no keys anywhere, and the slot where it was at first; return whether all nodes know that."""
    first = pairs[0]
    for pair in pairs:
        pair.peer.ask([b"FLUSHALL"], [b"SCRIPT", b"FLUSH"])
        pair.model.ask([b"FLUSHALL"])
        pair.model.server.scripts.clear()
    first.real.admin.execute_command("CLUSTER", "BUMPEPOCH")
    if _epoch(first) <= max(map(_epoch, pairs[1:])):
        # It has not heard of the others' epochs yet: their late messages about an earlier move would count.
        return False
    for pair in pairs:
        pair.set_slot("STABLE")
        pair.set_slot("NODE", nodes.id_of(first.real))
        pair.slots.owners[_SLOT] = first.address
        pair.slots.migrating.clear()
        pair.slots.importing.clear()
    owners = {
        owner[1]
        for pair in pairs
        for start, end, owner, *_ in pair.real.admin.execute_command("CLUSTER", "SLOTS")
        if start <= _SLOT <= end
    }
    return owners == {first.real.port}


def disagreement(nodes: Nodes, pairs: list[Pair], seed: int) -> str | None:
    """Run one sequence on both; return where they differ, or None."""
    dice = random.Random(seed)
    first, second, third = pairs
    eventually(lambda: _begin_anew(nodes, pairs), LONG_S)
    move = Move(nodes, first, second, [third])
    story: list[str] = []
    try:
        for _ in range(_COMMANDS):
            if dice.random() < 0.25:
                story.append("the slot moves on")
                move.step()
                continue
            pair = dice.choice([first, second])
            words = script_call(dice, flagged=True) if dice.random() < 0.5 else plain_command(dice)
            if dice.random() < 0.1:
                words = [dice.choice([b"SPUBLISH", b"PUBLISH"]), _CHANNEL, b"0"]
            for each in [[b"ASKING"], words] if dice.random() < 0.3 else [words]:
                story.append(f"{pair.real.port}: {shown(each)[:300]}")
                real, ours = pair.ask(each)
                moved = [str(reply) for reply in (real, ours) if str(reply).startswith(("MOVED", "ASK "))]
                if not same(real, ours) or (moved and moved[0] != moved[-1]):
                    history = "\n".join(story)
                    return f"seed {seed}: the server said {real!r}, the model {ours!r}\n{history}"
    except redis.ResponseError as error:
        return f"seed {seed}: {error}"
    return None


def disagreements(seeds: Iterator[int]) -> Iterator[str]:
    """Yield where the model differs from a cluster, for each of ``seeds``."""
    lua = Lua()
    with Nodes() as nodes:
        owners: list[Address | None] = [None] * SLOTS
        for number, server in enumerate(nodes.masters):
            start, end = number * SLOTS // MASTERS, (number + 1) * SLOTS // MASTERS
            owners[start:end] = [("127.0.0.1", server.port)] * (end - start)
        pairs = [Pair(server, lua, owners) for server in nodes.masters]
        try:
            for seed in seeds:
                found = [disagreement(nodes, pairs, seed)]
                while found[-1] is not None and len(found) < _TRIES:
                    found.append(disagreement(nodes, pairs, seed))
                if found[-1] is not None:
                    yield found[-1]
            yield from _of_subscriptions(nodes, pairs)
        finally:
            for pair in pairs:
                pair.close()


def _of_subscriptions(nodes: Nodes, pairs: list[Pair]) -> Iterator[str]:
    """Yield where the model differs about a channel of a shard whose slot moves."""
    first, second, third = pairs
    eventually(lambda: _begin_anew(nodes, pairs), LONG_S)
    for pair in (first, second):
        for what in (b"SSUBSCRIBE", b"SUNSUBSCRIBE", b"SSUBSCRIBE"):
            [real] = pair.listener.ask([what, _CHANNEL])
            pair.model._reader.feed(pair.model.server.handle(pair.heard, [what, _CHANNEL]))
            ours = pair.model._reader.gets()
            if not same(real, ours):
                yield f"to {what!r} the server said {real!r}, the model {ours!r}"
    move = Move(nodes, first, second, [third])
    move.step()
    move.step()
    [real] = first.listener.ask([b"PING"])  # its messages come before the answer
    first.model._reader.feed(b"".join(first.model_listener))
    ours = first.model._reader.gets()
    if not same(real, ours):
        yield f"a listener got {real!r}, from the model {ours!r}"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 48)
    print(f"{count} sequences from seed {first} on a cluster of Redis {'.'.join(map(str, redis_server_version()))}")
    for found in disagreements(iter(range(first, first + count))):
        print(found)
    print("the model replies as the cluster does")


if __name__ == "__main__":
    main()
