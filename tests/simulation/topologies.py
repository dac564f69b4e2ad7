"""Several servers that are one store of locks: masters with replicas that fail over, as a cluster or with Sentinels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation import dialogues
from tests.simulation.cluster_commands import Address, SlotTable, move_key
from tests.simulation.commands import Server
from tests.simulation.hosts import Host
from tests.simulation.programs import NAMES
from tests.simulation.replication import Feed
from tests.simulation.scheduler import Dice
from tests.simulation.sentinel_commands import Watch
from wheel_lock.net.clients import connector_for
from wheel_lock.protocol import keys as hashing

if TYPE_CHECKING:
    from tests.simulation.world import World

_PORT = 6379
SLOTS = 32  # in place of 16,384: several names share one
_GOSSIP_S = 0.4  # time in which all nodes of a cluster learn of a change
_NOTICE_S = 1.0  # silence after which the others take a master to be down


def address(host: Host) -> Address:
    return host.name, _PORT


class Shard:
    """A master and its replicas.

    Attributes:
        busy: Whether it fails over, has not recovered from that, or one of its slots moves.
        away: The master, or the former one, that is dead or cut off from the others.
    """

    def __init__(self, topology: Topology, hosts: list[Host]) -> None:
        self._topology = topology
        self._world = topology.world
        self.master, *self.replicas = hosts
        self.busy = False
        self.away: Host | None = None
        for host in hosts:
            host.is_of_store = lambda key, host=host: topology.says(host, key)  # type: ignore[misc]
        for replica in self.replicas:
            replica.server.replica = True
            self.master.feeds.append(Feed(self.master, replica))

    @property
    def hosts(self) -> list[Host]:
        return [self.master, *self.replicas]

    def fail_over(self, dice: Dice, *, dies: bool = False) -> None:
        """Have a replica take over, in one of several ways, or because the master ``dies``."""
        if self.busy or not self.replicas or not self.master.alive:
            return
        how = 1 if dies else dice.below(4)
        self.busy = True
        if how == 0 and not self.master.paused:
            self._hand_over()
        else:
            self._leave_behind(dice, dies=how < 2)

    def _hand_over(self) -> None:
        """The master waits until a replica has everything, and changes places with it: nothing is lost."""
        self._world.scheduler.note("%s hands over to %s", self.master.name, self.replicas[0].name)
        for feed in self.master.feeds:
            feed.hold(False)
            feed.drain()
        old = self.master
        self._promote(self.replicas[0])
        self._return(old)

    def _leave_behind(self, dice: Dice, *, dies: bool) -> None:
        """The master dies, or is cut off; after a while a replica takes over, and later the old one is back."""
        world, old = self._world, self.master
        notice_s, away_s = _NOTICE_S + dice.up_to(0.6), dice.pick([1.0, 0.2, 3.0, 6.0])
        world.scheduler.note("%s %s", old.name, "dies" if dies else "is cut off from the others")
        self.away = old
        for feed in old.feeds:
            feed.hold(True)
        minority = []
        if dies:
            old.die()
        else:
            near = [old, *self._topology.cut_off(old, _NOTICE_S + dice.pick([0.0, 0.4]), dice)]
            far = [host for host in self._topology.all_hosts if host not in near]
            minority = [
                process.link(host) for process in world.processes if process.alive and dice.one_in(3) for host in far
            ]
            for link in minority:
                link.hold(True, True)
        world.rules.trouble(notice_s + away_s)
        candidate = dice.pick(self.replicas)

        def take_over() -> None:
            if candidate.paused:
                world.rules.trouble(notice_s + away_s)
                world.scheduler.after(notice_s, take_over)
                return
            self._promote(candidate)
            world.scheduler.after(away_s, come_back)

        def come_back() -> None:
            for link in minority:
                link.hold(False, False)
            self._return(old)

        world.scheduler.after(notice_s, take_over)

    def _promote(self, new: Host) -> None:
        old = self.master
        self._world.scheduler.note("%s takes over from %s", new.name, old.name)
        self.replicas.remove(new)
        self.master = new
        for feed in old.feeds:
            feed.over = True
        new.lead()
        for replica in self.replicas:
            new.feeds.append(Feed(new, replica))
        self.replicas.append(old)
        self._world.rules.failed_over(old, new)
        self._topology.promoted(self, old, new)

    def _return(self, old: Host) -> None:
        self._world.scheduler.note("%s is back, as a replica", old.name)
        if not old.alive:
            old.revive()
        self.away = None
        old.follow(self.master)
        self._topology.returned(self, old)
        self.busy = False


class Topology:
    """A store of locks.

    Attributes:
        shards: Its parts.
        all_hosts: Its servers, and others that clients ask.
        faults: The kinds of faults that only it has.
    """

    faults: tuple[str, ...] = ("fail over", "lag")
    store = "store"

    def __init__(self, world: World) -> None:
        self.world = world
        self.shards: list[Shard] = []
        self.all_hosts: list[Host] = []

    def _new_shards(self, count: int, replicas: int, **more: Any) -> None:
        world, settings = self.world, self.world.settings
        rate = settings.server_rates[0]  # of all: the times-to-live of keys that move are those of one clock
        for _ in range(count):
            hosts = []
            for _ in range(1 + replicas):
                host = Host(world, f"redis{len(world.hosts)}", rate, flagged=settings.flagged, store=self.store, **more)
                world.hosts.append(host)
                hosts.append(host)
            self.shards.append(Shard(self, hosts))
        self.all_hosts += world.hosts

    def shard_of(self, key: bytes) -> Shard:
        return self.shards[0]

    def host_of(self, key: bytes) -> Host:
        """Return the server that has a key."""
        return self.shard_of(key).master

    def says(self, host: Host, key: bytes) -> bool:
        """Return whether what a server says about a key counts."""
        return self.shard_of(key).master is host

    def agrees_on(self, key: bytes) -> bool:
        """Return whether all servers agree which one has a key."""
        return not any(shard.busy for shard in self.shards)

    def connector(self) -> Any:
        """Return a new connector to it, of the process that runs."""
        raise NotImplementedError

    def lag(self, dice: Dice) -> None:
        """Have a replica get nothing for a while."""
        shard = dice.pick(self.shards)
        feeds = [feed for feed in shard.master.feeds if not feed.over]
        if feeds and not shard.busy:
            feed = dice.pick(feeds)
            self.world.scheduler.note("%s lags behind", feed.replica.name)
            feed.hold(True)

            def heal() -> None:
                if shard.away is None:
                    feed.hold(False)

            self.world.heal_later(dice.pick([0.3, 1.0, 3.0]), heal)

    def cut_off(self, host: Host, after_s: float, dice: Dice) -> list[Host]:
        """A master is cut off, which it finds out ``after_s`` seconds later; return the servers that it is cut off with."""
        return []

    def promoted(self, shard: Shard, old: Host, new: Host) -> None:
        """A replica has taken over."""

    def returned(self, shard: Shard, old: Host) -> None:
        """A former master is a replica now."""


class Cluster(Topology):
    """Three masters, each with a replica, and slots that move."""

    faults = (*Topology.faults, "move a slot")
    store = "cluster"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._new_shards(3, 1, in_cluster=True)
        self._owners = [self.shards[slot * 3 // SLOTS] for slot in range(SLOTS)]
        self._moving: dict[int, Shard] = {}  # to where
        self._epoch = 3
        servers: list[Server] = [host.server for host in world.hosts]
        self._tables: dict[Host, SlotTable] = {}
        for shard in self.shards:
            for host in shard.hosts:
                owners = [address(owner.master) for owner in self._owners]
                host.server.slots = self._tables[host] = SlotTable(address(host), owners)
                host.server.peers = lambda me=host.server: [each for each in servers if each is not me]  # type: ignore[misc]
        for host in world.hosts:
            self._tell_all(host)
        self._used = sorted({hashing.hash_slot(name.encode()) for names in NAMES.values() for name in names})
        self._stream = world.tape.stream("gossip")

    def connector(self) -> Any:
        return connector_for(dialogues.cluster_client(tuple(shard.master.name for shard in self.shards)))

    def shard_of(self, key: bytes) -> Shard:
        return self._owners[hashing.hash_slot(key)]

    def _served_by(self, key: bytes) -> list[Shard]:
        slot = hashing.hash_slot(key)
        return [self._owners[slot], *([self._moving[slot]] if slot in self._moving else [])]

    def host_of(self, key: bytes) -> Host:
        masters = [shard.master for shard in self._served_by(key)]
        return next((host for host in masters if key in host.server.data), masters[0])

    def says(self, host: Host, key: bytes) -> bool:
        return any(shard.master is host for shard in self._served_by(key))

    def agrees_on(self, key: bytes) -> bool:
        slot, owner = hashing.hash_slot(key), address(self.host_of(key))
        return super().agrees_on(key) and all(table.owners[slot] == owner for table in self._tables.values())

    # -- what nodes know ---------------------------------------------------------------------------------------------

    def _tell(self, host: Host, slot: int) -> None:
        """A node hears who owns a slot."""
        table, owner = self._tables[host], address(self._owners[slot].master)
        table.epoch = self._epoch
        before, table.owners[slot] = table.owners[slot], owner
        if before != owner:
            if owner != table.me:
                table.migrating.pop(slot, None)
            host.server.leave_slot(lambda channel: hashing.hash_slot(channel) == slot and owner != table.me)

    def _tell_all(self, host: Host) -> None:
        """A node hears everything."""
        for slot in range(SLOTS):
            self._tell(host, slot)
        self._tables[host].replicas = {
            address(shard.master): [address(replica) for replica in shard.replicas] for shard in self.shards
        }

    def _spread(self, tell: Callable[[Host], object]) -> None:
        """Have all nodes that can hear anything hear of something, one after the other."""
        for host in self.world.hosts:
            delay_s = self._stream.draw().up_to(_GOSSIP_S)
            self.world.scheduler.after(delay_s, lambda host=host: self._is_cut_off(host) or tell(host))  # type: ignore[misc]

    def _is_cut_off(self, host: Host) -> bool:
        return any(shard.away is host for shard in self.shards)

    # -- failovers ---------------------------------------------------------------------------------------------------

    def cut_off(self, host: Host, after_s: float, dice: Dice) -> list[Host]:
        def notice() -> None:
            if self._is_cut_off(host):
                self._tables[host].well = False

        self.world.scheduler.after(after_s, notice)
        return []

    def promoted(self, shard: Shard, old: Host, new: Host) -> None:
        self._epoch += 1
        self._tell_all(new)
        self._spread(self._tell_all)

    def returned(self, shard: Shard, old: Host) -> None:
        self._tables[old].well = True
        self._tell_all(old)

    # -- slots that move ---------------------------------------------------------------------------------------------

    def move_a_slot(self, dice: Dice) -> None:
        """Move a slot key by key, as redis-cli does."""
        there = [hashing.hash_slot(key) for shard in self.shards for key in shard.master.server.data]
        slot = dice.pick(there if there and not dice.one_in(4) else self._used)
        target = dice.pick([shard for shard in self.shards if shard is not self._owners[slot]])
        self.move(slot, target, dice.pick([0.05, 0.0, 0.3, 1.0]))

    def move(self, slot: int, target: Shard, pace_s: float) -> None:
        """Move a slot, with a pause before each step, unless something else happens to one of the two shards."""
        source = self._owners[slot]
        if slot in self._moving or source is target or source.busy or target.busy:
            return
        source.busy = target.busy = True  # what a failover makes of a slot that moves is a matter for operators
        self._moving[slot] = target
        scheduler, rules = self.world.scheduler, self.world.rules
        scheduler.note("slot %d moves from %s to %s", slot, source.master.name, target.master.name)
        giving, getting = self._tables[source.master], self._tables[target.master]
        getting.importing[slot] = giving.me

        def begin() -> None:
            giving.migrating[slot] = getting.me
            scheduler.after(pace_s, move_a_key)

        def move_a_key() -> None:
            rules.trouble(pace_s)
            if source.master.paused or target.master.paused:
                scheduler.after(0.1, move_a_key)
                return
            server = source.master.server
            key = next((key for key in server.data if hashing.hash_slot(key) == slot and server.has(key)), None)
            if key is None:
                end()
                return
            scheduler.note("%s moves", key)
            move_key(source.master.server, target.master.server, key)
            rules.moved(source.master, target.master, key)
            source.master.replicate([key])
            target.master.replicate([key])
            scheduler.after(pace_s, move_a_key)

        def end() -> None:
            self._owners[slot] = target
            del self._moving[slot]
            self._epoch += 1
            scheduler.note("slot %d has moved", slot)
            getting.importing.pop(slot, None)
            self._tell(target.master, slot)
            scheduler.after(pace_s, at_the_source)

        def at_the_source() -> None:
            rules.trouble(_GOSSIP_S)
            self._tell(source.master, slot)
            source.busy = target.busy = False
            self._spread(lambda host: self._tell(host, slot))

        rules.trouble(pace_s)
        scheduler.after(pace_s, begin)


class Sentinels(Topology):
    """A master with two replicas, and three Sentinels that say which one is the master."""

    faults = (*Topology.faults, "isolate a sentinel")
    store = "locks"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._new_shards(1, 2)
        master = address(self.shards[0].master)
        self._sentinels = [Host(world, f"sentinel{number}", 1.0, flagged=False) for number in range(3)]
        self._isolated: list[Host] = []  # those that hear nothing
        for host in self._sentinels:
            host.server.watch = Watch(master)
        self.all_hosts += self._sentinels
        self._stream = world.tape.stream("sentinels")

    def connector(self) -> Any:
        names = tuple(host.name for host in self._sentinels)
        return connector_for(dialogues.sentinel_client(names, Watch.service))

    def cut_off(self, host: Host, after_s: float, dice: Dice) -> list[Host]:
        if not dice.one_in(2) or self._isolated:
            return []
        self._isolated = [dice.pick(self._sentinels)]
        return list(self._isolated)

    def promoted(self, shard: Shard, old: Host, new: Host) -> None:
        dice = self._stream.draw()
        epoch = max(host.server.watch.epoch for host in self._sentinels) + 1
        near = [host for host in self._sentinels if host not in self._isolated]
        leader, *others = near
        watch: Watch = leader.server.watch
        watch.begin(epoch, address(new))
        leader.server.tell("+promoted-slave", watch.promotion)
        lasts_s = dice.pick([0.1, 0.5, 2.0])
        self.world.scheduler.after(lasts_s, lambda: self._switch(leader, epoch, new))
        for host in others:
            delay_s = dice.up_to(2.0)
            self.world.scheduler.after(delay_s, lambda host=host: self._switch(host, epoch, new))  # type: ignore[misc]
        self.world.rules.trouble(2.0)

    def _switch(self, sentinel: Host, epoch: int, new: Host) -> None:
        """A Sentinel takes over that there is a new master."""
        watch: Watch = sentinel.server.watch
        if watch.epoch <= epoch and sentinel not in self._isolated:
            message = watch.switch(epoch, address(new))
            self.world.scheduler.note("%s says: %s", sentinel.name, message)
            sentinel.server.tell("+switch-master", message)

    def _rejoin(self) -> None:
        """Isolated Sentinels hear of what they have missed."""
        self._isolated.clear()
        best = max((host.server.watch for host in self._sentinels), key=lambda watch: watch.epoch)
        for host in self._sentinels:
            if host.server.watch.epoch < best.epoch:
                host.server.tell("+switch-master", host.server.watch.switch(best.epoch, best.address))

    def returned(self, shard: Shard, old: Host) -> None:
        for link in self.world.links_to(old):
            link.reset()  # Sentinels have the clients of a demoted master disconnected
        self._rejoin()

    def isolate_sentinel(self, dice: Dice) -> None:
        """A Sentinel hears nothing of the others for a while, and goes on answering."""
        if self._isolated or self.shards[0].busy:
            return
        self._isolated = [dice.pick(self._sentinels)]
        self.world.scheduler.note("%s is isolated", self._isolated[0].name)
        self.world.heal_later(dice.pick([1.0, 4.0, 10.0]), self._rejoin)


TOPOLOGIES: dict[str, type[Topology]] = {"cluster": Cluster, "sentinels": Sentinels}
