"""The ACL lines of the pages about rights, pasted into redis-cli, are enough for what they are given for, and no more."""

from __future__ import annotations

import html
import re
import shutil
import subprocess

import pytest
import redis

from tests.cli.lock_commands import CommandLine, findings
from tests.redis.test_tenants import documented_rights
from tests.site.pages import ROOT
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockServerError

PAGE = (ROOT / "docs" / "operations" / "rights.md").read_text()
CLI = shutil.which("redis-cli")

pytestmark = pytest.mark.skipif(CLI is None, reason="needs redis-cli")


def paste(server: RedisServer, text: str) -> None:
    """Paste text at the prompt of redis-cli. Each of its lines must be a command that the server accepts."""
    assert CLI is not None
    done = subprocess.run(
        [CLI, "-p", str(server.port)], input=text, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["OK"]


def line(heading: str) -> str:
    """The block under a heading of the page."""
    found = re.search(rf"^## {heading}\n.*?```text\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def addition(what: str) -> str:
    """The first rights that the table has for something."""
    [row] = [row for row in PAGE.splitlines() if row.startswith("| ") and what in row.split(" | ")[0]]
    found = re.search(r"<code>(.*?)</code>|`(.*?)`", row.removesuffix(" |").split(" | ", 1)[1])
    assert found is not None
    return html.unescape(found[1] or found[2])


def url(server: RedisServer) -> str:
    return f"redis://billing:secret@127.0.0.1:{server.port}/0"


def as_user(server: RedisServer, heading: str) -> LockContext:
    paste(server, line(heading))
    return LockContext(redis.Redis(port=server.port, username="billing", password="secret"))


def wakes(context: LockContext, server: RedisServer) -> None:
    """A release in one context wakes a waiter of another one, long before it would poll."""
    lock = context.lock("billing:1", timeout=60.0)
    lock.acquire()
    with LockContext.from_url(url(server), fallback_interval=600.0) as other:
        waiting = Background(other.lock("billing:1", timeout=60.0).acquire)
        eventually(lambda: other.stats().waiting == 1)
        lock.release()
        assert waiting.result(60.0)


def test_the_line_for_plain_locks(fresh_redis: RedisServer) -> None:
    with as_user(fresh_redis, "Plain locks") as context:
        lock = context.lock("billing:1", fencing=True)
        lock.acquire()
        context.adopt(lock.export()).release()
        with context.multi_lock(["billing:1", "billing:2"]):
            pass
        context.release_many(context.acquire_many(["billing:1", "billing:2"]).values())
        wakes(context, fresh_redis)
        with pytest.raises(LockServerError), context.lock("payroll:1"):
            pass
        with pytest.raises(LockServerError), context.semaphore("billing:3", 2):
            pass


def test_the_line_for_all_kinds_has_the_rights_that_are_enough_for_them() -> None:
    given = line("All kinds of lock").removeprefix("ACL SETUSER billing on >secret ").split()
    assert {*given, "+select"} == {*documented_rights("billing:")}


def test_the_rights_to_watch(fresh_redis: RedisServer) -> None:
    as_user(fresh_redis, "Plain locks").close()
    paste(fresh_redis, f"ACL SETUSER billing {addition('watch=True')}")
    with LockContext.from_url(url(fresh_redis), watch=True) as context, context.lock("billing:1"):
        eventually(lambda: context.stats().watching)


@pytest.mark.parametrize("heading", ["Plain locks", "All kinds of lock"])
def test_the_rights_of_the_command_line(
    fresh_redis: RedisServer, capfd: pytest.CaptureFixture[str], heading: str
) -> None:
    as_user(fresh_redis, heading).close()
    run = CommandLine(url(fresh_redis), capfd)
    with fresh_redis.client() as view, LockContext(view) as others:
        held = others.lock("billing:1", timeout=600.0)
        held.acquire()
        for pattern in (("ls", "billing:*"), ("watch", "billing:*", "--seconds", "0.05")):
            assert "'scan'" in run(*pattern).err
        paste(fresh_redis, f"ACL SETUSER billing {addition('wheel-lock ls')}")
        for command in (
            ("ls", "billing:*"),
            ("watch", "billing:*", "--seconds", "0.05"),
            ("watch", "billing:1", "--seconds", "0.05"),
            ("inspect", "billing:1"),
            ("release", "billing:1", "--force", "--yes"),
        ):
            said = run(*command)
            assert (said.status, said.err) == (0, ""), command
            assert "billing:1" in said.out


def test_the_rights_of_run(fresh_redis: RedisServer, capfd: pytest.CaptureFixture[str]) -> None:
    as_user(fresh_redis, "Plain locks").close()
    run = CommandLine(url(fresh_redis), capfd)
    command = ("run", "billing:1", "--", "sleep", "0.5")
    assert "does not report changes" in run(*command).err
    paste(fresh_redis, f"ACL SETUSER billing {addition('watch=True')}")
    assert run(*command) == (0, "", "")


def test_the_rights_of_doctor(fresh_redis: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    as_user(fresh_redis, "All kinds of lock").close()
    fresh_redis.admin.config_set("appendonly", "yes")
    _, found = findings(capsys, url(fresh_redis), "--prefix", "billing:")
    assert {check for check, one in found.items() if one["severity"] != "ok"} == {"settings", "keys"}
    paste(fresh_redis, f"ACL SETUSER billing {addition('wheel-lock doctor')}")
    status, found = findings(capsys, url(fresh_redis), "--prefix", "billing:")
    assert (status, {one["severity"] for one in found.values()}) == (0, {"ok"})
