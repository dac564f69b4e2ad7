"""The sandbox of clients of fakeredis: it removes access to Python and files, which a Redis server does not offer.

* Scripts and functions run in lupa's Lua, which gives them access to Python: `python`, `os`, `io`, `debug`, and the
  attributes of every Python object, such as `redis.call.__globals__`. The sandbox keeps the names that a Redis server
  offers, allows loading of text but not of bytecode, and forbids access to attributes.
* RESTORE unpickles its argument. The sandbox accepts only results of DUMP in this process.
* ACL SAVE and ACL LOAD use the file that CONFIG SET names. The sandbox removes that name.

This applies to single connections, those of an embedded server; other uses of fakeredis in the process are unchanged.
fakeredis creates its interpreters in two methods, through the name LUA_MODULE. Their arguments cannot be set from outside,
and an attribute filter cannot be added later. So these two methods run with another value of that name. A version of
fakeredis that creates its interpreters in another way is refused when the server is started.
"""

from __future__ import annotations

import functools
import hmac
import secrets
from types import FunctionType
from typing import Any

_SCRIPTS = "_get_server_runtime"
_FUNCTIONS = "_functions"
_DUMP_KEY = secrets.token_bytes(32)
_SIGNATURE_SIZE = 32

# The globals that Redis offers to scripts, in Lua 5.1 to 5.4. redis, cjson, KEYS and ARGV are added later.
_OFFERED = (
    b"_G _VERSION assert collectgarbage coroutine error gcinfo getmetatable ipairs load loadstring math next pairs pcall"
    b" rawequal rawget rawlen rawset select setmetatable string table tonumber tostring type unpack xpcall bit32 utf8"
)
# The interpreter of functions needs these while it is created. They are removed then: loaded chunks see the globals.
_FOR_SETTING_UP = b" debug setfenv"

_CLOSE = b"""
local object, offered = ...
local byte, concat, tostring, type, error = string.byte, table.concat, tostring, type, error
local load, loadstring = load, loadstring
local binary = "binary chunks are not loaded"

-- Crafted bytecode breaks the interpreter: only text is loaded, as by a Redis server.
if _VERSION == "Lua 5.1" then
    function _G.loadstring(chunk, name)
        if type(chunk) == "string" and byte(chunk) == 27 then
            return nil, binary
        end
        return loadstring(chunk, name)
    end
    function _G.load(reader, name)
        if type(reader) ~= "function" then
            error("bad argument #1 to 'load' (function expected, got " .. type(reader) .. ")", 2)
        end
        local pieces = {}
        while true do
            local piece = reader()
            if piece == nil or piece == "" then
                break
            elseif type(piece) ~= "string" then
                return nil, "reader function must return a string"
            end
            pieces[#pieces + 1] = piece
        end
        local chunk = concat(pieces)
        if byte(chunk) == 27 then
            return nil, binary
        end
        return loadstring(chunk, name or "=(load)")
    end
else
    function _G.load(chunk, name, mode, ...)
        if mode == "b" then
            return nil, binary
        end
        return load(chunk, name, "t", ...)
    end
    _G.loadstring = nil
end
string.dump = nil

local kept = {}
for name in string.gmatch(offered, "%S+") do
    kept[name] = true
end
for name in pairs(_G) do
    if not kept[name] then
        _G[name] = nil
    end
end

-- The metatable of Python objects has functions that free them.
getmetatable(object).__metatable = false
-- lupa looks up globals outside of protected calls: an error in a metamethod would end the process.
setmetatable(_G, {__metatable = false})
"""


def close(socket: Any) -> None:
    """Restrict a connection of fakeredis to what a Redis server offers."""
    socket_class: Any = type(socket)
    socket.__class__ = _closed_class(socket_class)


def check(socket: Any) -> None:
    """Raise RuntimeError if a restricted connection has an unrestricted interpreter."""
    opened = []
    if hasattr(socket, "eval"):
        opened.append(getattr(socket, _SCRIPTS, lambda _: None)(socket._server))
    if hasattr(socket, "function_load"):
        opened.append(getattr(getattr(socket, _FUNCTIONS, lambda: None)(), "runtime", None))
    if not all(getattr(runtime, "closed_to_python", False) for runtime in opened):
        raise RuntimeError(
            "this version of fakeredis makes its Lua interpreters in a way that leaves them open to Python"
        )


class _ClosedLua:
    """lupa's module as fakeredis sees it, with another LuaRuntime."""

    def __init__(self, lua: Any, offered: bytes) -> None:
        self._lua = lua
        self.LuaRuntime = _closed_runtime(lua, offered)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lua, name)


def _closed_runtime(lua: Any, offered: bytes) -> type[Any]:
    def refuse(obj: object, name: object, is_setting: bool) -> str:
        raise lua.LuaError("attributes of Python objects are out of reach")

    def only_text(code: Any) -> None:
        if code[:1] in (b"\x1b", "\x1b"):
            raise lua.LuaError("binary chunks are not loaded")

    class ClosedRuntime(lua.LuaRuntime):  # type: ignore[misc]
        closed_to_python = True

        def __new__(cls, *args: Any, **settings: Any) -> Any:
            settings |= {"register_eval": False, "register_builtins": False, "attribute_filter": refuse}
            return super().__new__(cls, *args, **settings)

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().execute(_CLOSE, object(), offered)

        def execute(self, lua_code: Any, *args: Any, **more: Any) -> Any:
            only_text(lua_code)
            return super().execute(lua_code, *args, **more)

        def compile(self, lua_code: Any, *args: Any, **more: Any) -> Any:
            only_text(lua_code)
            return super().compile(lua_code, *args, **more)

    return ClosedRuntime


@functools.cache
def _closed_class(socket_class: type[Any]) -> type[Any]:
    members: dict[str, Any] = {}

    if hasattr(socket_class, _SCRIPTS):
        members[_SCRIPTS] = _with_closed_lua(getattr(socket_class, _SCRIPTS), _OFFERED)

    if hasattr(socket_class, _FUNCTIONS):
        open_engine = _with_closed_lua(getattr(socket_class, _FUNCTIONS), _OFFERED + _FOR_SETTING_UP)

        def functions(self: Any) -> Any:
            is_new = getattr(self._server, "_lua_functions", None) is None
            engine = open_engine(self)
            if is_new:
                engine.runtime.execute("debug, setfenv = nil")
            return engine

        members[_FUNCTIONS] = functions

    class ClosedSocket(socket_class):  # type: ignore[misc]
        def dump(self, key: Any) -> bytes | None:
            dumped = super().dump(key)
            return None if dumped is None else _signature(dumped) + dumped

        def restore(self, key: Any, ttl: int, value: bytes, *args: bytes) -> Any:
            signature, dumped = value[:_SIGNATURE_SIZE], value[_SIGNATURE_SIZE:]
            is_ours = hmac.compare_digest(signature, _signature(dumped))
            return super().restore(key, ttl, dumped if is_ours else b"", *args)  # an empty value has no valid checksum

        def acl_save(self) -> Any:
            self._server.config.pop(b"aclfile", None)
            return super().acl_save()

        def acl_load(self) -> Any:
            self._server.config.pop(b"aclfile", None)
            return super().acl_load()

    return type("ClosedSocket", (ClosedSocket,), members)


def _signature(dumped: bytes) -> bytes:
    return hmac.digest(_DUMP_KEY, dumped, "sha256")


def _with_closed_lua(method: Any, offered: bytes) -> Any:
    """Return a copy of a method with a restricted LUA_MODULE among its globals."""
    names = dict(method.__globals__)
    if "LUA_MODULE" in names:  # else check() finds that the interpreter is open
        names["LUA_MODULE"] = _ClosedLua(names["LUA_MODULE"], offered)
    own = FunctionType(method.__code__, names, method.__name__, method.__defaults__, method.__closure__)
    own.__kwdefaults__ = method.__kwdefaults__
    return own
