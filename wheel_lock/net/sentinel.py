"""Connecting to a master that Sentinels name. All of them are asked for each connection.

Each Sentinel is asked on a short-lived thread of its own, so a silent one does not delay the others. The client's own
Sentinel object judges each answer; ``sentinel_reports`` decides between different answers.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import queue
import time
from _thread import LockType
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import redis
import redis.asyncio
import redis.sentinel
from redis.connection import AbstractConnection

from wheel_lock import valkey_clients
from wheel_lock.net.client_references import Tie
from wheel_lock.net.connector import (
    Connection,
    NothingListens,
    RedisPyConnector,
    Server,
    as_failure,
    as_server,
    is_refused,
)
from wheel_lock.net.sentinel_reports import Belief, Opinion, Opinions
from wheel_lock.protocol.resp import error_text
from wheel_lock.runtime.greenlets import start_helper_thread
from wheel_lock.runtime.native import SimpleQueue, allocate_lock

_MAX_EPOCH = 2**63 - 1
_MAX_TARGETS = 16  # limit of cached connectors: Sentinels may name new servers for ever
_OTHERS_S = 0.25  # time limit for the other Sentinels after the first answer


class _FoundMaster:
    """Stands in for the pool that a user's connection class asks for the master; returns the known address."""

    is_master = True

    def __init__(self, service: str, sentinel: Tie, check_connection: bool, server: Server) -> None:
        self.service_name = service
        self._sentinel = sentinel
        self.check_connection = check_connection
        self.master_address = server[0], int(server[1])

    @property
    def sentinel_manager(self) -> Any:
        return self._sentinel()

    def get_master_address(self) -> tuple[str | None, int]:
        return self.master_address

    def reset(self) -> None: ...


class SentinelConnector(RedisPyConnector):
    """Connects to the current master of a service.

    Raises:
        TypeError: The client is one for replicas, or an asyncio client with a connection class of the user's own.
    """

    discovers = True

    def __init__(self, client: redis.Redis | redis.asyncio.Redis) -> None:
        super().__init__(client)
        pool: Any = client.connection_pool
        if not pool.is_master:
            raise TypeError("locks are held at a master: take the client from Sentinel.master_for, not from slave_for")
        self._asks_the_pool = self._connection_class is pool.connection_class  # a user's own does
        for name in ("connection_pool", "connection_class"):
            self._ties.pop(name, None)
        self._sentinel = Tie(pool.sentinel_manager)
        self._check_connection: bool = pool.check_connection
        self.service: str = pool.service_name
        self.sentinels: list[RedisPyConnector] = [
            RedisPyConnector(sentinel) for sentinel in pool.sentinel_manager.sentinels
        ]
        self.opinions: Opinions = Opinions(len(self.sentinels), time.monotonic)
        self._unanswered: dict[int, float] = {}  # when a question was sent, for each Sentinel that has not answered
        self._targets: dict[Server, SentinelConnector] = {}

    def let_go(self, *owners: object) -> bool:
        self._sentinel.loosen(owners)
        dropped = [super().let_go(*owners), *[sentinel.let_go(*owners) for sentinel in self.sentinels]]
        return self._sentinel.loose or any(dropped)

    def describe(self) -> str:
        """Return the name of the service, and the address of its master if it is known."""
        belief = self.opinions.belief
        return f"the master of {self.service!r} ({':'.join(map(str, belief.servers[0])) if belief else 'not known'})"

    def label(self) -> str:
        return self.service  # the master's address changes

    def listener(self) -> Self:
        other = super().listener()
        other._targets = {}
        return other

    def after_fork_in_child(self) -> None:
        """In a forked child: forget the parent's threads that ask."""
        self.opinions.after_fork_in_child()
        self._unanswered.clear()

    def connect(self, timeout_s: float) -> Connection:
        """Ask the Sentinels, and connect to the master that they name.

        Raises:
            redis.exceptions.RedisError, OSError: The attempt failed, or that server is not a master, or no longer.
        """
        *others, last = self.ask(timeout_s)
        for server in others:
            try:
                return RedisPyConnector.connect(self._at(server), timeout_s)
            except (redis.exceptions.RedisError, OSError):
                pass  # the master has another address as well
        return RedisPyConnector.connect(self._at(last), timeout_s)

    def _at(self, server: Server) -> SentinelConnector:
        if server not in self._targets:
            if len(self._targets) >= _MAX_TARGETS:
                self._targets.clear()
            target = self.at(server)
            if self._asks_the_pool:
                found = _FoundMaster(self.service, self._sentinel, self._check_connection, server)
                target._settings["connection_pool"] = found
            self._targets[server] = target
        return self._targets[server]

    def _check(self, connection: AbstractConnection) -> None:
        # The server may have been demoted since, or be cut off from the Sentinels that have demoted it.
        connection.send_command("ROLE")
        try:
            role = connection.read_response()
        except redis.exceptions.NoPermissionError:
            return  # without the right +role a replica is recognised by its reply to the first write
        if type(role) is not list or not role or role[0] != b"master":
            raise redis.exceptions.ConnectionError(f"{RedisPyConnector.describe(self)} is not a master, or no longer")

    def _is_master(self, server: Server, timeout_s: float) -> bool:
        try:
            RedisPyConnector.connect(self.listener()._at(server), timeout_s).close()
        except (redis.exceptions.RedisError, OSError):
            return False
        return True

    def ask(self, timeout_s: float) -> tuple[Server, ...]:
        """Ask all Sentinels for the master; return its addresses, at least one. Blocks.

        Args:
            timeout_s: The limit until the first answer. The other Sentinels have 250 ms more; later answers are taken into
                account when they arrive.

        Raises:
            redis.exceptions.ConnectionError: No Sentinel names a master.
        """
        answers: queue.SimpleQueue[Exception | None] = SimpleQueue()
        over = allocate_lock()  # taken when the round is over
        asked_at = time.monotonic()
        asked = 0
        errors: list[Exception] = []
        for number in range(len(self.sentinels)):
            # A Sentinel that is silent for longer is not asked again before its thread has ended: threads must not pile up.
            if asked_at - self._unanswered.setdefault(number, asked_at) >= _OTHERS_S:
                continue
            try:
                start_helper_thread(partial(self._ask_one, number, timeout_s, answers, over))
                asked += 1
            except RuntimeError as error:  # no thread can be started
                self._unanswered.pop(number, None)
                errors.append(error)
        until = asked_at + timeout_s
        while asked:
            try:
                failure = answers.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                break
            asked -= 1
            if failure is None:
                until = min(until, time.monotonic() + _OTHERS_S)
            else:
                errors.append(failure)
        over.acquire()
        belief = self._conclude(timeout_s)
        if belief is None:
            said = "".join(f"; {error_text(error)}" for error in errors)
            text = f"the Sentinels name no master of {self.service!r}{said}"
            if len(errors) == len(self.sentinels) and all(map(is_refused, errors)):
                raise NothingListens(text) from errors[0]
            raise redis.sentinel.MasterNotFoundError(text)
        return belief.servers

    def _conclude(self, timeout_s: float) -> Belief | None:
        return self.opinions.conclude(partial(self._is_master, timeout_s=timeout_s))

    def _ask_one(
        self, number: int, timeout_s: float, answers: queue.SimpleQueue[Exception | None], over: LockType
    ) -> None:
        """Ask one Sentinel for its opinion, and put the error, or None, into ``answers``. On a thread of its own."""
        failure = None
        try:
            self.opinions.give(number, self._opinion(self.sentinels[number], timeout_s))
            if over.locked():
                self._conclude(timeout_s)
        except BaseException as error:
            failure = as_failure(error)
        finally:
            self._unanswered.pop(number, None)  # before the answer, behind which the next round may begin at once
            answers.put(failure)

    def _opinion(self, sentinel: RedisPyConnector, timeout_s: float) -> Opinion | None:
        with sentinel.client(timeout_s) as client:
            # In one write, so that both answers are of the same moment; else the epoch could be older than the address.
            asking = client.pipeline(transaction=False)
            asking.execute_command("SENTINEL MASTER", self.service)
            asking.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.service)
            state, address = asking.execute(raise_on_error=False)
            if isinstance(state, redis.exceptions.NoPermissionError):
                # redis-py itself needs only the right to list all masters.
                state = client.sentinel_masters().get(self.service)
        if isinstance(state, redis.exceptions.ResponseError) or not state:
            return None  # it does not watch this master
        try:
            return self._read(state, address)
        except (ValueError, TypeError, LookupError) as error:
            text = f"a Sentinel's answer is malformed: {error_text(error)}"
        raise redis.exceptions.InvalidResponse(text)

    def _read(self, state: dict[str, Any], address: Any) -> Opinion | None:
        """Return the opinion in a Sentinel's answers; None if it knows too few other Sentinels, or not the master."""
        if int(state["num-other-sentinels"]) < self._sentinel().min_other_sentinels:
            return None
        epoch = int(state.get("config-epoch", 0))
        if not 0 <= epoch <= _MAX_EPOCH:
            raise ValueError("no configuration epoch can be that large")
        # Until a failover has ended the Sentinel that leads it returns the state of the old master in the new epoch. The
        # address belongs to the epoch.
        if isinstance(address, redis.exceptions.ResponseError):
            if "failover_in_progress" in state["flags"]:
                return None  # either of the two may be the master
            address = state["ip"], state["port"]
        server = as_server(address[0], address[1])
        if server is None:
            raise ValueError("there can be no server at that address")
        named = str(server[0]), int(server[1])
        if named != (state["ip"], state["port"]):
            state |= {"ip": named[0], "port": named[1], "is_master": True, "is_sdown": False, "is_odown": False}
        return Opinion(epoch, self._judged(state))

    def _judged(self, state: dict[str, Any]) -> Server | None:
        """Return the address as mapped by the client's Sentinel object; None if the master is down."""
        judge = copy.copy(self._sentinel())
        awaited = inspect.iscoroutinefunction(judge.discover_master)
        masters = {self.service: state}

        async def answer() -> dict[str, Any]:
            return masters

        # Stands in for a Sentinel, and returns the answer that has been received already.
        judge.sentinels = [SimpleNamespace(sentinel_masters=answer if awaited else lambda: masters)]
        try:
            found = judge.discover_master(self.service)
            host, port = asyncio.run(found) if awaited else found
        except valkey_clients.connection_errors():
            return None
        return host, str(port)
