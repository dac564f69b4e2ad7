"""Guards for data in Redis: a command, or a script of the user's, that runs only if no later holder has been there.

The check and the write are one script. The newest fence is kept beside the user's key, in its hash slot, so that it works
in a cluster. The server may be another than that of the lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from wheel_lock.errors import StaleFence
from wheel_lock.guards.fences import Fence, Fenced, fence_of
from wheel_lock.options import milliseconds, seconds
from wheel_lock.protocol.keys import guard_key
from wheel_lock.valkey_clients import key_as_sent

__all__ = ["AsyncGuarded", "Guarded"]

Key: TypeAlias = str | bytes
Value: TypeAlias = str | bytes | int | float

# The user's script sees its own KEYS and ARGV. The fence is remembered before it runs: a script that fails midway may have
# written. Its result is wrapped, because a refusal must differ from everything that it may return.
_BEFORE = """\
local function rest(list, first)
  local found = {}
  for place = first, #list do found[place - first + 1] = list[place] end
  return found
end
local newest = redis.call('get', KEYS[1])
if newest and tonumber(newest) > tonumber(ARGV[1]) then return {0, newest} end
if ARGV[2] == '' then redis.call('set', KEYS[1], ARGV[1])
else redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
local function guarded(KEYS, ARGV)
"""
_AFTER = """
end
local result = guarded(rest(KEYS, 2), rest(ARGV, 3))
if type(result) == 'table' and result.err then return result end
return {1, result}
"""
_COMMAND = "return redis.call('{}', KEYS[1], unpack(ARGV))"
_SET, _XADD = (_COMMAND.format(name) for name in ("set", "xadd"))
_HSET = """\
local new = 0
for place = 1, math.max(#ARGV, 1), 4000 do  -- unpack takes some thousand values
  new = new + redis.call('hset', KEYS[1], unpack(ARGV, place, math.min(place + 3999, #ARGV)))
end
return new"""


class _Guarded:
    def __init__(self, client: object, lock: Fenced, *, remember: float | None = None) -> None:
        self._client: Any = client
        self._lock = lock
        self._remember_ms = "" if remember is None else milliseconds(seconds("remember", remember, least=1.0))

    def _call(self, script: str, keys: Sequence[Key], args: Sequence[Value]) -> tuple[Fence, Any]:
        """Send the script; return the fence that it is guarded by, and the reply, which an asyncio client has awaited."""
        held = fence_of(self._lock)
        if isinstance(keys, (str, bytes)) or not keys:
            raise ValueError("keys must be a list with at least one key: the fence is kept in the slot of the first")
        if hasattr(self._client, "command_stack"):
            raise ValueError("a guard needs a client, not a pipeline: it has to read the reply")
        first = key_as_sent(self._client, keys[0])  # one key must not have two fences
        run = self._client.register_script(f"{_BEFORE}{script}{_AFTER}")
        return held, run([guard_key(first, held.name.encode()), *keys], [held.fence, self._remember_ms, *args])


def _result(held: Fence, reply: Sequence[Any]) -> Any:
    passed, *result = reply
    if not passed:
        raise StaleFence(held.name, held.fence, int(result[0]))
    return result[0] if result else None


def _flat(mapping: Mapping[Key, Value]) -> list[Value]:
    return [each for pair in mapping.items() for each in pair]


def _xadd_args(fields: Mapping[Key, Value], id: Key, maxlen: int | None) -> list[Value]:
    trim: list[Value] = [] if maxlen is None else ["MAXLEN", "~", maxlen]
    return [*trim, id, *_flat(fields)]


class Guarded(_Guarded):
    """Commands to Redis that are refused with `StaleFence` once a later holder has sent one to the same place.

    A place is a key, or all keys with the same hash tag, such as ``{42}:balance`` and ``{42}:history``; there the newest
    fence is kept under ``wheel_lock:guard:{tag}name``. It is lost with the data: after a FLUSHALL, an eviction or a
    failover to a replica without it, the next fence is taken as it comes.

    Args:
        client: A client of redis-py or valkey-py, of a server or a cluster; not a pipeline.
        lock: A lock with ``fencing=True`` that is held; or a leadership; or a pair of a name and a fence.
        remember: Seconds for which the newest fence is kept after a command; None keeps it without an expiry. A holder that
            is later than that is not refused.

    Each command raises what `fence_of` does before anything is sent.
    """

    def set(self, key: Key, value: Value, *options: Value) -> bool:
        """``SET key value``; return False if an option ``NX`` or ``XX`` has kept it from being set.

        Args:
            key: The key.
            value: The value.
            options: Those of Redis but ``GET``, such as ``"PX", 1000, "NX"``.
        """
        return self.run(_SET, [key], [value, *options]) is not None

    def hset(self, key: Key, mapping: Mapping[Key, Value]) -> int:
        """``HSET``; return the number of new fields."""
        return int(self.run(_HSET, [key], _flat(mapping)))

    def xadd(self, key: Key, fields: Mapping[Key, Value], id: Key = "*", maxlen: int | None = None) -> Any:
        """``XADD``; return the id of the entry. ``maxlen`` trims the stream to about that length."""
        return self.run(_XADD, [key], _xadd_args(fields, id, maxlen))

    def run(self, script: str, keys: Sequence[Key], args: Sequence[Value] = ()) -> Any:
        """Run a Lua script; return what it returns.

        Args:
            script: Its text, without a line ``#!lua``. It is cached at the server, so pass what differs in ``args``.
            keys: Its ``KEYS``, at least one; in a cluster all in one slot. The fence is kept beside the first.
            args: Its ``ARGV``.
        """
        return _result(*self._call(script, keys, args))


class AsyncGuarded(_Guarded):
    """`Guarded` for a client of ``redis.asyncio``: the same commands, awaited."""

    async def set(self, key: Key, value: Value, *options: Value) -> bool:
        """``SET``, as `Guarded.set`."""
        return await self.run(_SET, [key], [value, *options]) is not None

    async def hset(self, key: Key, mapping: Mapping[Key, Value]) -> int:
        """``HSET``, as `Guarded.hset`."""
        return int(await self.run(_HSET, [key], _flat(mapping)))

    async def xadd(self, key: Key, fields: Mapping[Key, Value], id: Key = "*", maxlen: int | None = None) -> Any:
        """``XADD``, as `Guarded.xadd`."""
        return await self.run(_XADD, [key], _xadd_args(fields, id, maxlen))

    async def run(self, script: str, keys: Sequence[Key], args: Sequence[Value] = ()) -> Any:
        """Run a Lua script, as `Guarded.run`."""
        held, reply = self._call(script, keys, args)
        return _result(held, await reply)
