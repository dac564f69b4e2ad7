"""The scripts as they ship, run by Lua in this process against a model server.

One Lua state serves all servers: as on a real server a script finds no global variables, and so leaves nothing behind.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from lupa import lua51

from tests.simulation.server import BareServer, Refused, Script, Status

_PRELUDE = b"""
local raw, sha1hex = ...
local redis = {}
local function reply(raise, kind, value, ...)
  if kind == 'value' then return value end
  if kind == 'list' then return {value, ...} end
  if kind == 'status' then return {ok = value} end
  if raise then error({err = value}, 0) end
  return {err = value}
end
function redis.call(...) return reply(true, raw(...)) end
function redis.pcall(...) return reply(false, raw(...)) end
function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end
function redis.sha1hex(text) return sha1hex(text) end
function redis.log() end
redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING = 0, 1, 2, 3
local shown = {
  redis = redis, string = string, table = table, math = math, pcall = pcall, error = error, type = type,
  tostring = tostring, tonumber = tonumber, unpack = unpack, ipairs = ipairs, pairs = pairs, next = next, select = select,
  assert = assert, rawget = rawget, setmetatable = setmetatable,
}
setmetatable(shown, {
  __index = function(_, name) error('Script attempted to access nonexistent global variable: ' .. tostring(name), 2) end,
  __newindex = function() error('Attempt to modify a readonly table') end,
})
local function load(source)
  local chunk, problem = loadstring('local KEYS, ARGV = ...\\n' .. source, '=user_script')
  if not chunk then return nil, problem end
  return setfenv(chunk, shown)
end
-- Return what kind of reply a script's result is, and that reply: a flat list as several values, as a table has its price.
local function kind_of(value)
  local what = type(value)
  if what == 'table' then
    if type(value.err) == 'string' then return 'error', value.err end
    if type(value.ok) == 'string' then return 'status', value.ok end
    local count = 0
    while value[count + 1] ~= nil do
      count = count + 1
      if type(value[count]) == 'table' then return 'list', value end
    end
    return 'flat', unpack(value, 1, count)
  end
  return what, value
end
local function run(chunk, count, ...)
  local words, keys, argv = {...}, {}, {}
  for i = 1, count do keys[i] = words[i] end
  for i = count + 1, #words do argv[i - count] = words[i] end
  local well, result = pcall(chunk, keys, argv)
  if well then return kind_of(result) end
  if type(result) == 'table' and type(result.err) == 'string' then return 'error', result.err end
  return 'failed', tostring(result)
end
return load, run, kind_of
"""
_FLAGS = frozenset({"no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"})


class Lua:
    """Compiles and runs scripts."""

    def __init__(self) -> None:
        self._state: Any = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self._load, self._run, self._kind_of = self._state.execute(_PRELUDE, self._call, self.sha1)
        self._server: BareServer | None = None
        self._compiled: dict[bytes, Script] = {}

    @staticmethod
    @functools.cache
    def sha1(source: bytes) -> bytes:
        return hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()

    def compile(self, source: bytes, flagged: bool) -> Script:
        """Return a script. Raises Refused."""
        if source.startswith(b"#!") and not flagged:
            raise Refused("ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'")
        script = self._compiled.get(source)
        if script is None:
            script = self._compiled[source] = self._new(source)
        return script

    def _new(self, source: bytes) -> Script:
        flags = None
        if source.startswith(b"#!"):
            first, _, source = source.partition(b"\n")
            engine, *options = first[2:].decode().split()
            named = [option.removeprefix("flags=") for option in options]
            flags = frozenset(filter(None, ",".join(named).split(",")))
            if engine != "lua" or flags - _FLAGS:
                raise Refused(f"ERR Unexpected engine or flag in script shebang: {first.decode()}")
        loaded = self._load(source)
        if isinstance(loaded, tuple):
            raise Refused(f"ERR Error compiling script (new function): {loaded[1].decode()}")
        return Script(loaded, flags)

    def run(self, server: BareServer, chunk: Any, keys: tuple[bytes, ...], argv: tuple[bytes, ...]) -> Any:
        """Run a script; return the reply. Raises Refused."""
        before, self._server = self._server, server
        try:
            return self._reply(self._run(chunk, len(keys), *keys, *argv))
        finally:
            self._server = before

    def _reply(self, result: Any) -> Any:
        kind, *values = result if isinstance(result, tuple) else (result,)
        if kind == b"flat":
            return [item if type(item) is bytes else _item(item) for item in values]
        value: Any = values[0] if values else None
        if kind == b"number":
            return int(value)
        if kind == b"string":
            return value
        if kind == b"boolean":
            return 1 if value else None
        if kind == b"error":
            raise Refused(value.decode(errors="replace"))
        if kind == b"failed":
            raise Refused(f"ERR {value.decode(errors='replace')}")
        if kind == b"status":
            return Status(value)
        if kind != b"list":
            return None
        items: list[Any] = []
        while (item := value[len(items) + 1]) is not None:
            try:
                items.append(item if type(item) is bytes else self._reply(self._kind_of(item)))
            except Refused as error:
                items.append(error)
        return items

    def _call(self, *words: Any) -> Any:
        """Execute a command for a script; return what kind of reply that has, and the reply, as Lua has it."""
        assert self._server is not None
        try:
            reply = self._server.call([word if type(word) is bytes else _word(word) for word in words])
        except Refused as error:
            return b"error", error.text.encode()
        if reply is None:
            return b"value", False
        if isinstance(reply, Status):
            return b"status", bytes(reply)
        if isinstance(reply, list):
            return b"list", *[False if item is None else item for item in reply]
        return b"value", reply


def _item(item: Any) -> int | None:
    """Return an item of a reply that is no text."""
    if isinstance(item, bool):
        return 1 if item else None
    return int(item) if isinstance(item, (int, float)) else None


def _word(word: Any) -> bytes:
    if type(word) is int:
        return b"%d" % word
    if type(word) is float:
        return b"%.17g" % word
    raise Refused("ERR Lua redis lib command arguments must be strings or integers")
