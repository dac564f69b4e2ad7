"""``wheel-lock doctor``: each danger is found and said with what to do, and nothing is left behind."""

from __future__ import annotations

import re

import pytest
import redis

from tests.cli.lock_commands import Examined, Refused
from tests.redis.test_tenants import documented_rights
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.cli import main
from wheel_lock.cli.doctor import distances, neighbours
from wheel_lock.cli.doctor.distances import Distance
from wheel_lock.cli.doctor.findings import Finding, Severity, worst
from wheel_lock.cli.doctor.rights import grant

pytestmark = pytest.mark.slow

KINDS = [
    "lock", "lock with fencing", "reentrant lock", "fair lock", "read lock", "write lock", "semaphore", "multi-lock",
]  # fmt: skip
PARTS = ["keys", "channels", "commands"]


def with_user(server: RedisServer, *rules: str) -> str:
    """Create the user ``app``; return the URL with which it connects."""
    server.admin.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules)
    return f"redis://app:secret@127.0.0.1:{server.port}/0"


def test_a_safe_server_has_status_0(fresh_redis: RedisServer, examined: Examined) -> None:
    fresh_redis.admin.config_set("appendfsync", "always")
    fresh_redis.admin.config_set("appendonly", "yes")
    status, found = examined(fresh_redis.url)
    assert {check: finding["severity"] for check, finding in found.items() if finding["severity"] != "ok"} == {}
    assert status == 0
    assert set(KINDS) <= set(found)
    assert {"role", "eviction", "persistence", "replicas", "version", "round trip", "clocks", "wake-ups"} <= set(found)
    # What is left are the last fences of two kinds of lock, as after each use of these.
    assert all(key.startswith(b"wheel_lock:fence:") for key in fresh_redis.admin.scan_iter())


@pytest.mark.parametrize(
    ("settings", "check", "severity", "advice"),
    [
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "eviction", "problem", "noeviction"),
        ({"maxmemory-policy": "volatile-ttl"}, "eviction", "warning", "noeviction"),
        ({"maxmemory": "100mb"}, "eviction", "ok", ""),
        ({"appendonly": "no"}, "persistence", "warning", "CONFIG SET appendonly yes"),
        ({"appendonly": "yes", "appendfsync": "no"}, "persistence", "warning", "appendfsync"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "persistence", "ok", "longest timeout"),
    ],
)
def test_settings(
    fresh_redis: RedisServer,
    examined: Examined,
    settings: dict[str, str],
    check: str,
    severity: str,
    advice: str,
) -> None:
    for name, value in settings.items():
        fresh_redis.admin.config_set(name, value)
    status, found = examined(fresh_redis.url)
    assert found[check]["severity"] == severity
    assert advice in found[check]["advice"]
    severities = {finding["severity"] for finding in found.values()}
    assert status == (4 if "problem" in severities else 3 if "warning" in severities else 0)


def test_replicas_without_min_replicas(fresh_redis: RedisServer, examined: Examined) -> None:
    with RedisServer() as replica, replica.client() as follower, fresh_redis.client() as view:
        follower.execute_command("REPLICAOF", "127.0.0.1", str(fresh_redis.port))
        eventually(lambda: view.info("replication")["connected_slaves"] == 1)
        _, found = examined(fresh_redis.url)
        assert found["replicas"]["severity"] == "warning"
        assert "min_replicas=1" in found["replicas"]["advice"]
        _, found = examined(fresh_redis.url, "--min-replicas", "1")
        assert found["replicas"]["severity"] == "ok"
        status, found = examined(fresh_redis.url, "--min-replicas", "2")
        assert found["replicas"]["severity"] == "problem"
        assert status == 4
        eventually(lambda: follower.info("replication")["master_link_status"] == "up")
        status, found = examined(replica.url)
        assert status == 4
        assert found["role"]["severity"] == "problem"
        assert found["locks"]["severity"] == "problem"


def test_a_missing_right_has_its_line(fresh_redis: RedisServer, examined: Examined) -> None:
    url = with_user(fresh_redis, "~*", "&*", "+@all", "-zadd", "-publish")
    status, found = examined(url)
    assert status == 4
    for kind in KINDS:
        needs_it = kind in ("read lock", "write lock", "semaphore")
        assert found[kind]["severity"] == ("problem" if needs_it else "ok")
        assert found[kind]["advice"] == ("ACL SETUSER app +zadd" if needs_it else "")
    assert found["wake-ups"]["severity"] == "warning"
    for check in ("read lock", "wake-ups"):
        fresh_redis.admin.execute_command(*found[check]["advice"].split())
    _, found = examined(url)
    assert {found[check]["severity"] for check in (*KINDS, "wake-ups")} == {"ok"}


@pytest.mark.parametrize(
    ("keys", "worst", "status", "right"), [("~other:*", "problem", 4, "~order:* "), ("~*", "warning", 3, "&")]
)
def test_the_line_for_a_prefix_and_channels_suffices(
    fresh_redis: RedisServer, examined: Examined, keys: str, worst: str, status: int, right: str
) -> None:
    url = with_user(fresh_redis, keys, "+@all", "resetchannels")
    found_status, found = examined(url, "--prefix", "order:")
    assert (found_status, found["rights"]["severity"]) == (status, worst)
    assert {found[kind]["severity"] for kind in KINDS} == {"problem" if worst == "problem" else "ok"}
    assert found["wake-ups"]["severity"] == "warning"
    assert found["rights"]["advice"].startswith(f"ACL SETUSER app {right}")
    fresh_redis.admin.execute_command(*found["rights"]["advice"].split())
    _, found = examined(url, "--prefix", "order:")
    assert {found[check]["severity"] for check in (*KINDS, "wake-ups")} == {"ok"}
    assert "rights" not in found


def test_the_rights_are_those_of_the_documentation() -> None:
    documented = {rule for rule in documented_rights("order:") if rule[0] in "~&+"}
    assert documented == {*grant("app", "order:", PARTS).split()[3:]}


def test_without_the_right_to_info_the_rest_is_checked(fresh_redis: RedisServer, examined: Examined) -> None:
    _, found = examined(with_user(fresh_redis, "~*", "&*", "+@all", "-info", "-config", "-time"))
    assert found["settings"]["severity"] == found["round trip"]["severity"] == found["clocks"]["severity"] == "unknown"
    assert found["lock"]["severity"] == "ok"
    assert found["read lock"]["severity"] == "problem"  # its script goes by the server's clock


def test_keys_of_others(fresh_redis: RedisServer, examined: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_redis.client() as view, LockContext(view) as context:
        _, found = examined(fresh_redis.url, "--prefix", "a*:")
        assert found["keys"]["text"] == "there is no key below the prefix yet"
        with context.lock("a*:1"), context.semaphore("a*:2", 2):
            _, found = examined(fresh_redis.url, "--prefix", "a*:")
            assert found["keys"]["text"] == "of 2 keys all are locks"
            view.set("ab:c", "data")
            _, found = examined(fresh_redis.url, "--prefix", "a*:")
            assert found["keys"]["severity"] == "ok"
            view.persist("a*:1")
            _, found = examined(fresh_redis.url, "--prefix", "a*:")
            assert "never expire, such as a*:1" in found["keys"]["text"]
            view.lpush("a*:\x1b[2J", "data")
            _, found = examined(fresh_redis.url, "--prefix", "a*:")
            assert found["keys"]["severity"] == "warning"
            assert "1 are not locks of this library, such as a*:\\x1b[2J" in found["keys"]["text"]
            monkeypatch.setattr(neighbours, "MOST_KEYS", 2)
            _, found = examined(fresh_redis.url)
            assert "of 2 keys (there are more)" in found["keys"]["text"]


def test_keys_that_the_user_may_not_read(fresh_redis: RedisServer, examined: Examined) -> None:
    fresh_redis.admin.set("secret:1", "data")
    _, found = examined(with_user(fresh_redis, "~order:*", "~wheel_lock:*", "&*", "+@all"))
    assert found["keys"]["severity"] == "unknown"
    assert "1 may not be read, such as secret:1" in found["keys"]["text"]


def test_plain_lines_and_the_worst_last(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--redis", redis_server.url])
    said = capsys.readouterr()
    assert status == 3
    assert said.err == ""
    assert "\x1b" not in said.out
    lines = said.out.splitlines()
    assert lines[0].startswith("ok       role")
    assert lines[-3].startswith("warning  persistence")
    assert lines[-2].startswith("         -> CONFIG SET appendonly yes")
    assert re.fullmatch(r"\d+ ok, 1 warning", lines[-1])


@pytest.mark.parametrize(
    ("worst_s", "severity"), [(0.9, Severity.OK), (1.1, Severity.WARNING), (10.5, Severity.PROBLEM)]
)
def test_round_trips_beside_the_timeout(worst_s: float, severity: Severity) -> None:
    assert distances.round_trip(Distance(0.001, worst_s, 0.0, 0.001), 30.0)[0] is severity


@pytest.mark.parametrize(
    ("ahead_s", "uncertain_s", "severity"),
    [
        (0.1, 0.001, Severity.OK),
        (-0.8, 0.001, Severity.WARNING),
        (0.8, 0.001, Severity.WARNING),
        (0.8, 0.2, Severity.OK),
    ],
)
def test_clocks_apart(ahead_s: float, uncertain_s: float, severity: Severity) -> None:
    clocks = {"one:1": Distance(0.001, 0.001, 0.0, 0.001), "two:2": Distance(0.001, 0.001, ahead_s, uncertain_s)}
    found, text, _ = distances.clock_offsets(clocks)
    assert found is severity
    assert "two:2" in text


def test_a_server_that_is_not_there(refused: Refused) -> None:
    status, sentence = refused("doctor", "--redis", "redis://127.0.0.1:1")
    assert status == 1
    assert "127.0.0.1:1" in sentence


@pytest.mark.parametrize(
    ("option", "value"), [("--timeout", "0"), ("--min-replicas", "-1"), ("--prefix", "wheel_lock:")]
)
def test_bad_values(redis_server: RedisServer, refused: Refused, option: str, value: str) -> None:
    status, sentence = refused("doctor", "--redis", redis_server.url, option, value)
    assert status == 2
    assert option in sentence


def test_the_worst_of_findings() -> None:
    findings = [Finding("a", severity, "") for severity in (Severity.WARNING, Severity.UNKNOWN, Severity.OK)]
    assert worst(findings) is Severity.WARNING
    assert worst([]) is Severity.OK


def test_errors_of_the_measurement_are_unknown() -> None:
    gone = redis.Redis(port=1)
    findings = list(distances.findings_of([gone], 30.0))
    assert [finding.severity for finding in findings] == [Severity.UNKNOWN, Severity.UNKNOWN]
    assert findings[0].server == "localhost:1"
