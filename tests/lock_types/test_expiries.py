"""What each script does about expiries: none becomes shorter by a call that comes late, and no key is left without one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis

from tests.lock_types.script_calls import (
    CHANNEL,
    DAY,
    FENCE,
    PERMIT_1,
    PERMITS,
    READ_1,
    READ_2,
    SHARED,
    WAITER_1,
    WAITER_2,
    WRITE_1,
    WRITE_2,
    Server,
)
from tests.support.backend import LONG_S, Backend
from tests.support.lock_types import NAME
from tests.support.redis_server import RedisServer, require_redis_7
from tests.support.waiting import eventually
from wheel_lock import LockServerError
from wheel_lock.options import MAX_TTL_MS
from wheel_lock.protocol import scripts
from wheel_lock.protocol.scripts import ALL, Script
from wheel_lock.testing import EmbeddedServer

TOKEN, OTHER_TOKEN = WAITER_1 + b"1" * 22, WAITER_2 + b"2" * 22
SLACK_MS = 100  # tolerance between the server's TIME and the clock of its expiries
FORMS = ["plain", "flagged"]
Step = Callable[[Server], object]


class Setting(NamedTuple):
    """A way in which a holder's expiry is set.

    Attributes:
        grant: Gives the lock, for so many ms.
        call: Sets the expiry, by a script, to so many ms from now, or to so many more.
        member: What the holder is in a sorted set.
    """

    grant: Callable[[Server, int], object]
    call: Callable[[Server, int], object]
    member: bytes = b""


def string(server: Server, ttl: int) -> None:
    server.view.set(NAME, TOKEN, px=ttl)


def field(server: Server, ttl: int) -> None:
    server.call(scripts.ACQUIRE_REENTRANT, [NAME], TOKEN, ttl)


def swapped(server: Server, ttl: int) -> None:
    server.write(WRITE_1, ttl)
    server.swap(WRITE_1, READ_1, ttl)


SETTINGS = {
    "acquire": Setting(string, lambda server, ttl: server.call(scripts.ACQUIRE, [NAME], TOKEN, ttl)),
    "acquire many": Setting(string, lambda server, ttl: server.call(scripts.ACQUIRE_MANY, [], ttl, NAME, TOKEN)),
    "acquire all": Setting(string, lambda server, ttl: server.call(scripts.ACQUIRE_ALL, [], ttl, NAME, TOKEN)),
    "acquire fenced": Setting(
        string, lambda server, ttl: server.call(scripts.ACQUIRE_FENCED, [NAME, FENCE], TOKEN, ttl, DAY, 1)
    ),
    "acquire fair": Setting(string, lambda server, ttl: server.fair(TOKEN, ttl, fenced=True)),
    "acquire reentrant": Setting(
        field, lambda server, ttl: server.call(scripts.ACQUIRE_REENTRANT, [NAME, FENCE], TOKEN, ttl, DAY)
    ),
    "acquire read": Setting(lambda server, ttl: server.read(READ_1, ttl), lambda server, ttl: server.read(READ_1, ttl)),
    "acquire write": Setting(
        lambda server, ttl: server.write(WRITE_1, ttl), lambda server, ttl: server.write(WRITE_1, ttl, fenced=True)
    ),
    "acquire permit": Setting(
        lambda server, ttl: server.permit(PERMIT_1, ttl), lambda server, ttl: server.permit(PERMIT_1, ttl)
    ),
    "renew": Setting(string, lambda server, ttl: server.call(scripts.RENEW, [], ttl, NAME, TOKEN)),
    "renew reentrant": Setting(field, lambda server, ttl: server.call(scripts.RENEW_REENTRANT, [], ttl, NAME, TOKEN)),
    "renew a reader": Setting(
        lambda server, ttl: server.read(READ_1, ttl), lambda server, ttl: server.renew((NAME, READ_1), ttl=ttl), READ_1
    ),
    "renew a writer": Setting(
        lambda server, ttl: server.write(WRITE_1, ttl),
        lambda server, ttl: server.renew((NAME, WRITE_1), ttl=ttl),
        WRITE_1,
    ),
    "extend": Setting(string, lambda server, ttl: server.call(scripts.EXTEND, [NAME], TOKEN, ttl, 0, MAX_TTL_MS)),
    "extend reentrant": Setting(
        field, lambda server, ttl: server.call(scripts.EXTEND_REENTRANT, [NAME], TOKEN, ttl, 0, MAX_TTL_MS)
    ),
    "extend a reader": Setting(
        lambda server, ttl: server.read(READ_1, ttl), lambda server, ttl: server.extend(READ_1, ttl), READ_1
    ),
    "extend a writer": Setting(
        lambda server, ttl: server.write(WRITE_1, ttl), lambda server, ttl: server.extend(WRITE_1, ttl), WRITE_1
    ),
    "adopt": Setting(string, lambda server, ttl: server.call(scripts.ADOPT, [NAME], TOKEN, OTHER_TOKEN, ttl)),
    "adopt again": Setting(string, lambda server, ttl: server.call(scripts.ADOPT, [NAME], OTHER_TOKEN, TOKEN, ttl)),
    "swap again": Setting(swapped, lambda server, ttl: server.swap(WRITE_1, READ_1, ttl), READ_1),
}
"""Each script that sets the expiry of a lock that is held. The acquires are a retry, or come late: they find their own."""

settings = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())


@pytest.fixture(params=[*FORMS, "embedded"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """An empty real server, for each form of the scripts, and the embedded one, which knows the plain form."""
    if request.param == "flagged":
        require_redis_7()
    embedded = request.param == "embedded"
    there: RedisServer | EmbeddedServer = request.getfixturevalue("embedded_server" if embedded else "redis_server")
    password = there.password if isinstance(there, EmbeddedServer) else None
    with Backend("embedded" if embedded else "real", there.port, password) as backend:
        backend.view.flushall()
        yield Server(backend, request.param == "flagged")


def lasts(server: Server, member: bytes) -> float:
    """How many ms are left to a key, or to a member of it if that is less."""
    key_ms: Any = server.view.pttl(NAME)
    return min(key_ms, server.left_ms(member)) if member else float(key_ms)


@settings
def test_what_comes_late_shortens_nothing_and_what_comes_in_time_prolongs(server: Server, setting: Setting) -> None:
    setting.grant(server, 5_000)
    setting.call(server, 60_000)
    assert lasts(server, setting.member) > 59_000
    setting.call(server, 1_000)
    assert lasts(server, setting.member) > 59_000
    assert server.view.persist(NAME)
    setting.call(server, 50_000)
    assert server.view.pttl(NAME) > 49_000, "a key that has lost its expiry gets one again"


def test_a_key_that_has_lost_its_expiry_lasts_as_long_as_its_last_member(server: Server) -> None:
    server.read(READ_1, 60_000)
    server.view.persist(NAME)
    server.read(READ_2, 5_000)
    assert 59_000 < server.left_ms(READ_1) <= server.view.pttl(NAME) + SLACK_MS <= 60_000 + 2 * SLACK_MS


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("renew", {"get": 1, "pexpire": 1}),
        ("renew reentrant", {"hexists": 1, "pexpire": 1}),
        ("renew a reader", {"time": 1, "zscore": 1, "pexpire": 1, "zadd": 1}),
    ],
)
def test_a_renewal_looks_again_only_where_it_must(fresh: Backend, name: str, calls: dict[str, int]) -> None:
    require_redis_7()
    server = Server(fresh)

    def made() -> dict[str, int]:
        stats = fresh.view.info("commandstats")
        made = {command.removeprefix("cmdstat_"): known["calls"] for command, known in stats.items()}
        return {command: made[command] for command in made if not command.startswith(("eval", "config", "info"))}

    SETTINGS[name].grant(server, 1_000)
    fresh.view.config_resetstat()
    SETTINGS[name].call(server, 10_000)
    assert made() == calls
    fresh.view.config_resetstat()
    SETTINGS[name].call(server, 5_000)
    calls.pop("zadd", None)
    assert made() == {**calls, "pttl": 1}


def held_by_another(server: Server) -> None:
    server.view.set(NAME, OTHER_TOKEN, px=50_000)


def written_by_another(server: Server) -> None:
    server.write(WRITE_2, 50_000)


def a_reader_waits(server: Server) -> None:
    server.write(WRITE_1, 5_000)
    server.read(READ_2, wait_ttl=50_000)


def nothing(server: Server) -> None:
    """Nothing is there."""


def leave(server: Server) -> None:
    server.fair(OTHER_TOKEN, wait_ttl=50_000)
    server.leave(OTHER_TOKEN)


def at_first(setting: Setting) -> tuple[Step, Step]:
    return nothing, lambda server: setting.call(server, 60_000)


def again(setting: Setting) -> tuple[Step, Step]:
    return lambda server: setting.grant(server, 5_000), lambda server: setting.call(server, 60_000)


REFUSED: dict[str, tuple[Step, Step]] = {
    **{f"{name}, at first": at_first(setting) for name, setting in SETTINGS.items()},
    **{f"{name}, again": again(setting) for name, setting in SETTINGS.items()},
    "a place in the queue": (held_by_another, lambda server: server.fair(TOKEN, wait_ttl=60_000)),
    "giving up a place in the queue": (held_by_another, leave),
    "the word of a writer": (written_by_another, lambda server: server.write(WRITE_1, wait_ttl=60_000)),
    "the word of a reader": (written_by_another, lambda server: server.read(READ_1, wait_ttl=60_000)),
    "a second reader": (lambda server: server.read(READ_2, 5_000), lambda server: server.read(READ_1, 60_000)),
    "a second permit": (lambda server: server.permit(b"p:" + b"9" * 22, 5_000), lambda server: server.permit()),
    "a writer leaves": (a_reader_waits, lambda server: server.release(WRITE_1)),
    "a writer becomes a reader": (a_reader_waits, lambda server: server.swap(WRITE_1, READ_1, 60_000)),
    "a reader leaves": (lambda server: (server.read(READ_1), server.read(READ_2)), lambda s: s.release(READ_1)),
    "shorten": (lambda s: string(s, 60_000), lambda s: s.call(scripts.EXTEND, [NAME], TOKEN, 5_000, 1, MAX_TTL_MS)),
    "shorten a reader": (lambda s: s.read(READ_1, 60_000), lambda s: s.extend(READ_1, 5_000, replace=True)),
    "a fence of a quorum": (
        lambda s: string(s, 60_000),
        lambda s: s.call(scripts.WRITE_FENCE, [NAME, FENCE], TOKEN, 5, DAY),
    ),
    "several": (nothing, lambda s: s.call(scripts.ACQUIRE_ALL, [], 60_000, NAME, TOKEN, "another", TOKEN)),
    "look": (written_by_another, lambda s: s.look(WRITE_1)),
    "release": (lambda s: string(s, 60_000), lambda s: s.call(scripts.RELEASE, [NAME], TOKEN, CHANNEL)),
    "release many": (lambda s: string(s, 60_000), lambda s: s.call(scripts.RELEASE_MANY, [], NAME, TOKEN, CHANNEL)),
    "release reentrant": (
        lambda s: field(s, 60_000),
        lambda s: s.call(scripts.RELEASE_REENTRANT, [NAME], TOKEN, CHANNEL),
    ),
    "release reentrant many": (
        lambda s: field(s, 60_000),
        lambda s: s.call(scripts.RELEASE_REENTRANT_MANY, [], NAME, TOKEN, CHANNEL),
    ),
    "look at all": (written_by_another, lambda s: s.call(scripts.LOOK, [NAME], 64, 600, 1_000)),
    "force a string": (lambda s: string(s, 60_000), lambda s: s.force("string", TOKEN)),
    "force a reentrant lock": (lambda s: field(s, 60_000), lambda s: s.force("hash", TOKEN)),
    "force a writer": (a_reader_waits, lambda s: s.force("zset", WRITE_1)),
    "set permits": (nothing, lambda s: s.call(scripts.SET_PERMITS, [PERMITS], 5, SHARED)),
}
"""What is there, and what is called then; every script, in every state in which it does something else."""


class Guarded(NamedTuple):
    """A server, and a caller whose rights can be taken away."""

    backend: Backend
    caller: redis.Redis

    def refuse(self, *commands: str) -> None:
        rules = ["reset", "on", "nopass", "~*", "&*", "+@all", *[f"-{command}" for command in commands]]
        self.backend.view.execute_command("ACL", "SETUSER", "caller", *rules)

    def not_to_last_for_ever(self) -> list[str]:
        """What must not be as it is."""
        view = self.backend.view
        wrong = [f"{key!r} never expires" for key in view.scan_iter() if view.pttl(key) < 0 and key != PERMITS.encode()]
        if view.type(NAME) == b"zset":
            server, left_ms = Server(self.backend), view.pttl(NAME)
            for member in server.members():
                if server.left_ms(member) > left_ms + SLACK_MS:
                    wrong.append(f"{member!r} is said to outlive the key")
        return wrong


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with RedisServer() as server, Backend("real", server.port) as backend:
        guarded = Guarded(backend, backend.client(username="caller", password="any"))
        guarded.refuse()
        with guarded.caller:
            yield guarded


class Listed(Server):
    """A server that notes which scripts are called."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.called: list[Script] = []

    def call(self, script: Script, keys: list[str], *arguments: str | bytes | int) -> Any:
        self.called.append(script)
        return super().call(script, keys, *arguments)

    def commands(self) -> list[str]:
        """The commands that occur in the scripts which were called."""
        words = {word.decode() for script in self.called for word in re.findall(rb"'([a-z]+)'", script.flagged.source)}
        return sorted(words & {str(name) for name in self.view.command()})


# Flags are another first line, and no other commands: each case in one form will do.
@pytest.mark.parametrize(("name", "form"), [*zip(REFUSED, itertools.cycle(["plain", "flagged"]), strict=False)])
def test_whatever_is_refused_half_way_no_key_is_left_that_never_expires(guarded: Guarded, form: str, name: str) -> None:
    if form == "flagged":
        require_redis_7()
    there, call = REFUSED[name]
    view, flagged = guarded.backend.view, form == "flagged"
    view.flushall()
    there(Server(guarded.backend, flagged))
    well = Listed(guarded.backend, flagged)
    call(well)
    commands, wrong = well.commands(), []
    assert len(commands) > 1
    # Whatever would undo a write may be refused together with PEXPIRE.
    for refused in [(command,) for command in commands] + [("pexpire", command) for command in commands]:
        view.flushall()
        there(Server(guarded.backend, flagged))
        guarded.refuse(*refused)
        try:
            call(Server(guarded.backend, flagged, guarded.caller))
        except redis.ResponseError:
            pass
        wrong += [f"without {refused}: {problem}" for problem in guarded.not_to_last_for_ever()]
    assert wrong == []


def test_every_script_is_called_here(fresh: Backend) -> None:
    listed = Listed(fresh)
    for there, call in REFUSED.values():
        fresh.view.flushall()
        there(listed)
        call(listed)
    assert set(listed.called) == set(ALL) - {scripts.RIGHTS}


def test_an_acquire_that_an_error_ends_half_way_is_undone_when_that_is_possible(fresh: Backend) -> None:
    with fresh.context() as context:
        reader = context.rw_lock(NAME, timeout=60.0).read()
        assert reader.acquire()
        reader.release()
        # The reader's member is in when what it may have left as a waiter is thrown out.
        fresh.view.execute_command("ACL", "SETUSER", "default", "-zrem")
        with pytest.raises(LockServerError):
            reader.acquire()
        assert fresh.view.exists(NAME)
        fresh.view.execute_command("ACL", "SETUSER", "default", "+zrem")
        eventually(lambda: not fresh.view.exists(NAME), LONG_S, "the grant without a recipient is released")
