"""A client of the embedded server gets Redis, and never Python or a file of ours."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
from lupa import lua51

from tests.support.redis_server import RedisServer, require_redis_7
from wheel_lock.embedded import sandbox
from wheel_lock.testing import EmbeddedServer

Run = Callable[[str], Any]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client
        client.flushall()


@pytest.fixture(params=["EVAL", "EVALSHA", "FCALL"])
def run(request: pytest.FixtureRequest, client: redis.Redis) -> Run:
    """Run the body of a script in each way there is."""

    def evalsha(body: str) -> Any:
        return client.evalsha(client.script_load(body), 0)

    def fcall(body: str) -> Any:
        client.function_load(f"#!lua name=one\nredis.register_function('f', function() {body} end)", replace=True)
        return client.fcall("f", 0)

    ways: dict[str, Run] = {"EVAL": lambda body: client.eval(body, 0), "EVALSHA": evalsha, "FCALL": fcall}
    return ways[request.param]


def refused(run: Run, body: str) -> None:
    with pytest.raises(redis.ResponseError, match=r"attempt to (index|call)|nonexistent global|out of reach"):
        run(body)


GLOBALS = [
    "python", "os", "io", "package", "require", "dofile", "loadfile", "debug", "print", "newproxy", "setfenv", "getfenv",
    "module", "jit", "ffi", "warn",
]  # fmt: skip


@pytest.mark.parametrize("name", GLOBALS)
def test_names_that_lead_out_are_gone(run: Run, name: str) -> None:
    refused(run, f"return {name}.x")
    # A chunk that is loaded sees the globals of the interpreter, and not what a function is shown of them.
    assert run(f"return loadstring('return type({name})')()") == b"nil"
    assert run(f"return type(rawget(loadstring('return _G')(), '{name}'))") == b"nil"
    assert run(f"return coroutine.wrap(function() return loadstring('return type({name})')() end)()") == b"nil"


@pytest.mark.parametrize(
    "body", ["string.dump(tostring)", "('').dump(tostring)", "getmetatable('').__index.dump(tostring)"]
)
def test_bytecode_is_not_dumped(run: Run, body: str) -> None:
    refused(run, f"return {body}")


OBJECTS = {
    "redis.call": "redis.call",
    "redis.pcall": "redis.pcall",
    "redis.log": "redis.log",
    "cjson.encode": "cjson.encode",
    "cjson.null": "cjson.null",
    "an error of redis.call": "select(2, pcall(redis.call, 'nonsense'))",
    "an error of Python": "select(2, pcall(redis.call, 5))",
    "an error of cjson": "select(2, pcall(cjson.decode, '{'))",
    "a refusal": "select(2, pcall(function() return redis.call.x end))",
    "an error in a coroutine": "select(2, coroutine.resume(coroutine.create(function() redis.call('nonsense') end)))",
    "an error in a handler": "select(2, xpcall(function() redis.call('nonsense') end, function(e) return e end))",
}
ATTRIBUTES = [
    "__globals__", "__class__", "__dict__", "__self__", "func", "args", "__traceback__", "__cause__", "__context__",
    "__reduce__", "value", "name", "obj",
]  # fmt: skip


@pytest.mark.parametrize("python_object", OBJECTS.values(), ids=OBJECTS.keys())
def test_no_attribute_of_a_python_object_is_read_or_set(run: Run, python_object: str) -> None:
    for name in (*ATTRIBUTES, "x"):
        refused(run, f"local object = {python_object} return tostring(object['{name}'])")
        refused(run, f"local object = {python_object} object['{name}'] = 1")
    refused(run, f"local object = {python_object} return object[1]")
    assert run(f"return tostring(getmetatable({python_object}))") == b"false"


def test_a_handler_of_errors_finds_nothing_in_them(client: redis.Redis) -> None:
    # lupa calls what it finds by this name with the error of a script, which may be a Python object.
    handler = """
        function(e)
            if type(e) == 'userdata' then
                redis.found = tostring(pcall(function() return e.__traceback__ end))
            end
            return 'handled'
        end"""
    try:
        for script in (f"debug = {{traceback = {handler}}} error('x')", "redis.call('nonsense')"):
            with pytest.raises(redis.ResponseError):
                client.eval(script, 0)
        assert client.eval("debug = nil return redis.found", 0) == b"false"
    finally:
        client.eval("debug, redis.found = nil", 0)


def test_bytecode_is_not_loaded(client: redis.Redis, run: Run) -> None:
    code: bytes = lua51.LuaRuntime(encoding=None).eval("string.dump(function() return 7 end)")
    escaped = "".join(f"\\{byte:03}" for byte in code)
    whole = f"local f, why = loadstring('{escaped}') return {{tostring(f), why}}"
    assert run(whole) == [b"nil", b"binary chunks are not loaded"]
    pieces = (
        f"local code, at = '{escaped}', 0 "
        "local f, why = load(function() at = at + 1 return string.sub(code, at, at) end) return {tostring(f), why}"
    )
    assert run(pieces) == [b"nil", b"binary chunks are not loaded"]
    for command in (("EVAL", code), ("EVALSHA", client.execute_command("SCRIPT LOAD", code))):
        with pytest.raises(redis.ResponseError, match="binary chunks are not loaded"):
            client.execute_command(*command, 0)


def test_the_globals_have_no_metatable_that_could_end_the_process(client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="protected metatable"):
        client.eval("setmetatable(_G, {__index = function() error('x') end})", 0)
    assert client.ping()


# What scripts are there for


def test_scripts_find_what_a_redis_server_has_and_nothing_else(client: redis.Redis, redis_server: RedisServer) -> None:
    require_redis_7()
    names = """
        local found = {}
        for name, value in pairs(_G) do
            found[#found + 1] = name
            if type(value) == 'table' and name ~= '_G' then
                for inner in pairs(value) do found[#found + 1] = name .. '.' .. inner end
            end
        end
        return found"""
    ours = set(client.eval(names, 0))
    with redis_server.client() as real:
        theirs = set(real.eval(names, 0))
    assert ours <= theirs
    prefixes = (b"redis", b"cjson", b"struct", b"cmsgpack", b"bit", b"__redis__err__handler", b"string.dump")
    assert [name for name in theirs - ours if not name.startswith(prefixes)] == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return redis.call('set', 'k', 'v').ok", b"OK"),
        ("return redis.pcall('nonsense').err ~= nil and 1", 1),
        ("return redis.status_reply('FINE')", b"FINE"),
        ("return {loadstring('return 7', 'chunk')()}", [7]),
        ("local n = 0 return {load(function() n = n + 1 return ({'return ', '7'})[n] end)()}", [7]),
        ("return tostring(loadstring('return return'))", b"nil"),
        ("local f, why = load(function() return {} end) return {tostring(f), why}",
         [b"nil", b"reader function must return a string"]),
        ("return {math.max(1, 2), #string.rep('x', 3), table.concat({'a', 'b'}), select('#', 1, 2)}", [2, 3, b"ab", 2]),
        ("return cjson.encode(cjson.decode('[1,{\"a\":null}]'))", b'[1,{"a":null}]'),
        ("return {pcall(error, 'x')}", [None]),
        ("local ok, why = pcall(error, 'x', 0) return why", b"x"),
        ("local t = setmetatable({}, {__index = function() return 5 end}) return t.x", 5),
        ("return coroutine.wrap(function() coroutine.yield(3) end)()", 3),
    ],
)  # fmt: skip
def test_what_redis_offers_goes_on_working(run: Run, body: str, expected: object) -> None:
    found = run(body)
    assert (found[:1] if expected == [None] else found) == expected


def test_an_error_that_a_script_passes_on_keeps_its_code(run: Run, client: redis.Redis) -> None:
    client.rpush("list", "x")
    for body in (
        "return redis.call('get', 'list')",
        "local ok, e = pcall(redis.call, 'get', 'list') error(e)",
        "local ok, e = pcall(redis.call, 'get', 'list') return e",
        "return redis.pcall('get', 'list')",
    ):
        with pytest.raises(redis.ResponseError, match="Operation against a key holding the wrong kind of value"):
            run(body)


# What else would run Python, or use files


class Payload:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def test_restore_takes_only_what_dump_has_returned(client: redis.Redis, tmp_path: Path) -> None:
    client.rpush("list", "a", "b")
    dumped = client.dump("list")
    assert isinstance(dumped, bytes)
    client.restore("copy", 0, dumped)
    client.restore("copy", 5000, dumped, replace=True)
    assert client.lrange("copy", 0, -1) == [b"a", b"b"]
    assert client.dump("nothing") is None

    body = pickle.dumps(Payload(tmp_path / "made"))
    forged = hashlib.sha1(body).digest() + body
    cut = (b"", dumped[:32], dumped[32:], dumped[:-1], dumped + b"x")
    for value in (forged, dumped[:32] + forged, b"\0" * 32 + forged, *cut):
        with pytest.raises(redis.ResponseError, match="payload version or checksum"):
            client.restore("forged", 0, value)
        reply = client.eval("return redis.pcall('restore', KEYS[1], 0, ARGV[1]).err", 1, "forged", value)
        assert b"checksum" in reply
    assert not client.exists("forged")
    assert list(tmp_path.iterdir()) == []


def test_acl_commands_use_no_file(client: redis.Redis, tmp_path: Path) -> None:
    path = tmp_path / "acl"
    for command in ("ACL SAVE", "ACL LOAD"):
        client.config_set("aclfile", str(path))
        with pytest.raises(redis.ResponseError, match=r"(?i)acl file"):
            client.execute_command(command)
    client.config_set("aclfile", str(path))
    with pytest.raises(redis.ResponseError):
        client.eval("return redis.call('acl', 'save')", 0)
    assert not path.exists()


# How far it goes


def test_other_uses_of_fakeredis_are_left_alone(client: redis.Redis) -> None:
    with fakeredis.FakeRedis() as other:
        assert client.eval("return type(python)", 0) == b"nil"
        assert other.eval("return type(python)", 0) == b"table"


def test_a_fakeredis_that_makes_interpreters_in_another_way_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SCRIPTS", "_FUNCTIONS"):
        with monkeypatch.context() as patch:
            patch.setattr(sandbox, name, "another_way")
            sandbox._closed_class.cache_clear()
            with pytest.raises(RuntimeError, match=re.escape("leaves them open to Python")):
                EmbeddedServer()
        sandbox._closed_class.cache_clear()
    with EmbeddedServer() as server, server.client() as client:
        assert client.ping()
