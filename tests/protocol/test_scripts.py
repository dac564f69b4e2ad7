"""Scripts: each in both of its forms, and a real server agrees with every one of them."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from importlib.resources.abc import Traversable

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.redis_server import RedisServer, redis_server_version
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import bulk_string, command, lease_args
from wheel_lock.protocol.scripts import ALL, COMMANDS, FLAG_PROBE, Command, Script, ScriptForm

FLAGS = {"allow-oom", "allow-cross-slot-keys", "no-writes", "allow-stale", "no-cluster"}
FILES = sorted(
    (file for file in resources.files("wheel_lock.protocol").joinpath("lua").iterdir() if file.name.endswith(".lua")),
    key=lambda file: file.name,
)


def name_of(script: Script) -> str:
    return script.name


def test_every_file_is_a_script_and_every_script_a_file() -> None:
    assert [file.name for file in FILES] == sorted(f"{script.name}.lua" for script in ALL)
    assert len({script.name for script in ALL}) == len(ALL)
    assert {value for value in vars(scripts).values() if isinstance(value, Script)} == set(ALL)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_a_file_opens_with_what_it_is_and_takes_and_answers(file: Traversable) -> None:
    lines = file.read_text("ascii").splitlines()
    header = []
    for line in lines:
        if not line.startswith("--"):
            break
        header.append(line.removeprefix("--").strip())
    assert header[0].startswith("flags:")
    assert set(filter(None, header[0].removeprefix("flags:").strip().split(","))) <= FLAGS
    assert header[1][0].isupper()
    text = " ".join(header)
    for what in ("KEYS:", "ARGV:", "Reply:"):
        assert text.count(what) == 1, f"{what} is not in the header, or twice"
    body = "\n".join(lines[len(header) :])
    assert ("KEYS[" in body) == ("KEYS: none" not in text)
    assert "ARGV" in body


@pytest.mark.parametrize("script", ALL, ids=name_of)
def test_the_two_forms_differ_by_their_first_line_and_by_what_came_with_redis_7(script: Script) -> None:
    first, *rest = script.flagged.source.splitlines(keepends=True)
    assert b"".join(line for line in rest if b"'GT'" not in line) == script.plain.source
    asked = script.plain.source.split(b"\n")[0].partition(b"flags:")[2].strip()
    assert first == (b"#!lua flags=" + asked if asked else b"#!lua") + b"\n"
    assert not script.plain.source.startswith(b"#!")
    assert script.form(True) is script.flagged
    assert script.form(False) is script.plain
    for form in (script.plain, script.flagged):
        assert form.sha1 == hashlib.sha1(form.source).hexdigest()


def test_what_keeps_and_frees_locks_works_without_memory_and_what_grants_them_does_not() -> None:
    for script in ALL:
        assert (b"allow-oom" in script.flagged.source.split(b"\n")[0]) == (not script.name.startswith("acquire"))


def test_every_command_that_a_script_calls_is_one_that_the_user_must_be_allowed_to_call() -> None:
    done_without = {"publish", "type", "hlen", "hkeys", "strlen", "hstrlen", "hget", "pubsub"}
    called = {script: set(re.findall(r"call\('(\w+)'", script.plain.source.decode())) for script in ALL}
    assert {command for script in ALL for command in script.commands} == COMMANDS
    for script, commands in called.items():
        assert commands - done_without <= script.commands


def test_what_works_on_many_keys_may_cross_slots_and_what_declares_keys_may_not() -> None:
    for script in ALL:
        first = script.flagged.source.split(b"\n")[0]
        assert (b"allow-cross-slot-keys" in first) == (b"KEYS: none" in script.plain.source)


def test_a_real_server_gives_every_script_the_sha1_that_we_call_it_by(redis_server: RedisServer) -> None:
    client = redis_server.client()
    for script in ALL:
        forms = [script.plain, script.flagged] if redis_server_version() >= (7,) else [script.plain]
        for form in forms:
            loaded = client.script_load(form.source)
            assert (loaded.decode() if isinstance(loaded, bytes) else loaded) == form.sha1


@given(arguments=st.lists(st.binary(max_size=20), max_size=5), keys=st.integers(0, 3), script=st.sampled_from(ALL))
def test_a_call_is_a_well_formed_command(arguments: list[bytes], keys: int, script: Script) -> None:
    body = b"".join(map(bulk_string, arguments))
    tail = [str(keys).encode(), *arguments]
    for form in (script.plain, script.flagged):
        by_sha1 = form.call(keys, len(arguments), body)
        assert by_sha1 == command(b"EVALSHA", form.sha1.encode(), *tail)
        use_eval = form.call(keys, len(arguments), body, use_eval=True)
        assert use_eval == command(b"EVAL", form.source, *tail)


def test_the_number_of_keys_may_have_many_digits() -> None:
    body = bulk_string(b"a") * 1000
    assert ScriptForm(b"return 1").call(1000, 1000, body, use_eval=True) == command(
        b"EVAL", b"return 1", b"1000", *[b"a"] * 1000
    )


def test_a_call_takes_the_form_that_the_connection_knows() -> None:
    call = Command(scripts.RELEASE, 1, 2, lease_args(b"name", b"token"))
    for flagged in (True, False):
        form = scripts.RELEASE.form(flagged)
        assert call.encode(flagged, False) == command(b"EVALSHA", form.sha1.encode(), b"1", b"name", b"token")
        assert call.encode(flagged, True) == command(b"EVAL", form.source, b"1", b"name", b"token")


def test_a_plain_command_is_sent_as_it_is() -> None:
    body = command(b"GET", b"key")
    call = Command(None, 0, 0, body)
    assert {call.encode(flagged, use_eval) for flagged in (True, False) for use_eval in (True, False)} == {body}


@pytest.mark.parametrize("keyed", [True, False])
def test_the_call_about_rights_names_every_command(keyed: bool) -> None:
    reader = hiredis.Reader()
    reader.feed(scripts.rights_call(keyed=keyed).encode(True, False))
    _, _, keys, *arguments = reader.gets()
    assert keys == b"%d" % keyed
    assert arguments[1 + keyed :] == [name.encode() for name in sorted(COMMANDS)]


def test_the_probe_is_a_script_with_flags() -> None:
    reader = hiredis.Reader()
    reader.feed(command(b"EVAL", FLAG_PROBE, b"0"))
    assert reader.gets() == [b"EVAL", FLAG_PROBE, b"0"]
    assert FLAG_PROBE.startswith(b"#!lua flags=")
