"""Processes that are killed, on a real server: their locks are free at once, and no others."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import redis

from tests.keeper.holder import NAME, TIMEOUT_S
from tests.keeper.rig import (
    AT_ONCE_S,
    NOT_MEANWHILE_S,
    Hold,
    HostKeeper,
    all_free,
    connections_of,
    is_kept,
    keepers_of,
)
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext

# What ends a process


@pytest.mark.parametrize("act", ["kinds held", "names held", "downgraded", "braces", "many", "direct"])
def test_locks_of_each_kind_are_freed(hold: Hold, client: redis.Redis, act: str) -> None:
    holder = hold(act).ready()
    assert not all_free(client)
    holder.dies(client)


def test_a_waiter_is_woken(hold: Hold, redis_server: RedisServer) -> None:
    holder = hold("exclusive").ready()
    # Without a wake-up it would look again when the holder's timeout has passed.
    with LockContext.from_url(redis_server.url, fallback_interval=TIMEOUT_S) as context:
        waiting = context.lock(NAME, blocking_timeout=AT_ONCE_S)
        timer = context.timer.new_timeout(lambda timeout: os.kill(holder.pid, signal.SIGKILL), 0.3)
        assert waiting.acquire()
        assert timer.expired


@pytest.mark.parametrize("act", ["working", "alone"])
def test_what_was_under_way_is_freed(hold: Hold, client: redis.Redis, act: str) -> None:
    for kill in range(8):
        holder = hold(act).ready()
        time.sleep(0.013 * kill)
        holder.dies(client)


# What proves nothing


@pytest.mark.parametrize("act", ["exclusive", "disconnected", "executes", "loses_its_main_thread"])
def test_a_process_that_lives_keeps_its_lock(hold: Hold, client: redis.Redis, act: str) -> None:
    holder = hold(act)
    while (line := holder.line()) != "ready":
        assert line.startswith("WARNING no keeper")  # its session was ended on purpose
    if act == "exclusive":
        os.kill(holder.pid, signal.SIGSTOP)
    assert is_kept(client)
    holder.dies(client)


def test_a_fork_that_lives_on_holds_nothing_of_its_parent(hold: Hold, client: redis.Redis) -> None:
    holder = hold("forks")
    child = int(holder.line())
    try:
        holder.dies(client)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_death_of_a_fork_frees_its_own_locks_only(hold: Hold, client: redis.Redis) -> None:
    holder = hold("forks_a_holder")
    child = int(holder.line())
    assert client.exists("of the child")
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not client.exists("of the child"), AT_ONCE_S)
    assert is_kept(client)
    holder.dies(client)


# Tokens that are another process's to use


def test_an_exported_lock_stays_its_adopters(hold: Hold, client: redis.Redis) -> None:
    holder = hold("exported")
    text = holder.line()
    holder.kill()
    assert is_kept(client)
    adopter = hold(f"adopt {text}")
    assert adopter.line() == "adopted"
    assert client.exists(NAME)
    adopter.dies(client)


def test_a_lock_with_a_chosen_token_stays(hold: Hold, client: redis.Redis) -> None:
    holder = hold("caller_token").ready()
    holder.kill()
    assert is_kept(client)
    assert client.get(NAME) == b"mine"


def test_the_lock_of_another_holder_stays(hold: Hold, client: redis.Redis) -> None:
    holder = hold("exclusive").ready()
    client.set(NAME, "another's")
    holder.kill()
    assert is_kept(client)


# Commands that arrive late, and graces


def test_a_command_that_arrives_after_the_release_is_undone(hold: Hold, client: redis.Redis) -> None:
    holder = hold("exclusive").ready()
    token = client.get(NAME)
    assert isinstance(token, bytes)
    holder.dies(client)
    for _ in range(2):
        client.set(NAME, token, px=60_000)
        eventually(lambda: all_free(client), AT_ONCE_S)


def test_the_delay_is_kept(hold: Hold, client: redis.Redis) -> None:
    holder = hold("exclusive", delay=2 * NOT_MEANWHILE_S).ready()
    holder.kill()
    assert is_kept(client)
    eventually(lambda: all_free(client), AT_ONCE_S)


# The keeper of a host


def test_a_keeper_serves_many_processes(hold: Hold, client: redis.Redis, keeper: HostKeeper) -> None:
    holders = [hold(act, where=keeper.path) for act in ("exclusive", "many")]
    for holder in holders:
        assert holder.line() == "ready"
    holders[1].kill()
    eventually(lambda: client.keys() == [NAME.encode()], AT_ONCE_S)
    assert "a process has ended: released 1000 in" in keeper.line()
    assert is_kept(client)
    holders[0].dies(client)
    assert "a process has ended: released 1 in" in keeper.line()


def test_a_keeper_that_is_killed_costs_one_warning_and_is_found_again(
    hold: Hold, client: redis.Redis, keeper: HostKeeper
) -> None:
    holder = hold("exclusive", where=keeper.path).ready()
    keeper.kill()
    warning = "WARNING no keeper: if this process is killed, locks stay until their timeouts: "
    assert holder.line() == f"{warning}it has ended; another one is looked for"
    assert is_kept(client)
    keeper.start()
    eventually(lambda: connections_of(keeper.pid) > 0, AT_ONCE_S)
    holder.dies(client)
    assert holder.line() == ""


def test_a_child_keeper_that_is_killed_is_started_again(hold: Hold, client: redis.Redis) -> None:
    holder = hold("exclusive").ready()
    (first,) = keepers_of(holder.pid)
    os.kill(first, signal.SIGKILL)
    assert holder.line().startswith("WARNING no keeper")

    def another() -> bool:
        return any(pid != first and connections_of(pid) > 0 for pid in keepers_of(holder.pid))

    eventually(another, AT_ONCE_S)
    holder.dies(client)


def test_a_keeper_that_is_stopped_delays_nothing_but_the_release(
    hold: Hold, client: redis.Redis, keeper: HostKeeper
) -> None:
    holder = hold("alone", where=keeper.path).ready()
    os.kill(keeper.pid, signal.SIGSTOP)
    before = client.info("commandstats")["cmdstat_set"]["calls"]
    eventually(lambda: client.info("commandstats")["cmdstat_set"]["calls"] > before + 100, AT_ONCE_S)
    holder.kill()
    os.kill(keeper.pid, signal.SIGCONT)
    eventually(lambda: all_free(client), AT_ONCE_S)


def test_the_keeper_gets_another_connection_when_the_server_has_closed_one(
    hold: Hold, client: redis.Redis, keeper: HostKeeper
) -> None:
    holder = hold("exclusive", where=keeper.path).ready()
    client.client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: connections_of(keeper.pid) == 0 or len(client.client_list()) >= 3, AT_ONCE_S)
    eventually(lambda: connections_of(keeper.pid) > 0 and len(client.client_list()) >= 3, AT_ONCE_S)
    holder.dies(client)


def test_a_keeper_that_is_not_there_is_reported_once(hold: Hold, client: redis.Redis, tmp_path: Path) -> None:
    holder = hold("exclusive", where=str(tmp_path / "nobody"))
    assert holder.line().startswith("WARNING no keeper: if this process is killed, locks stay until their timeouts: ")
    assert is_kept(client)


def test_a_child_keeper_ends_with_its_process(hold: Hold, client: redis.Redis) -> None:
    holder = hold("closes").ready()
    (pid,) = keepers_of(holder.pid)
    files = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    assert sum("wheel_lock-record" in file for file in files) == 1  # those of closed contexts are gone
    client.delete(NAME)
    holder.kill()


@pytest.mark.parametrize("act", ["leaves", "drops"])
def test_locks_that_are_left_to_expire_stay(hold: Hold, client: redis.Redis, act: str) -> None:
    holder = hold(act).ready()
    holder.kill()
    eventually(lambda: not client.exists(NAME), AT_ONCE_S)
    assert is_kept(client, "left")
