-- Expiries are only prolonged: a delayed call must not undo a later one.
-- (`call` is redis.call if an error ends the script, redis.pcall if it is returned.)
local last  -- for keys whose members expire one by one: the remaining time of the last member in ms
local function lengthen(call, name, ttl)
  local left = call('pttl', name)
  if type(left) == 'table' then return left end
  if left >= tonumber(ttl) then return 1 end
  -- The key has lost its expiry. The new one must not precede that of a member, unless that exceeds 2**52 ms.
  if left == -1 and last then
    ttl = string.format('%.0f', math.min(math.max(tonumber(ttl), last(name) or 0), 4503599627370496))
  end
  return call('pexpire', name, ttl)
end
-- Have a key last for ttl ms, unless it lasts longer. Returns 1, 0 if there is no key, or the error.
-- A key that GT refuses lasts longer, has no expiry, or is gone. The plain form omits the line: GT is new in Redis 7.
local function prolong(call, name, ttl)
  if redis.pcall('pexpire', name, ttl, 'GT') == 1 then return 1 end
  return lengthen(call, name, ttl)
end
-- Write into a key that expires. PEXPIRE is called first, although the key may not exist yet: if it is refused nothing has
-- been written, and if not it will not be refused after the write, which would leave a key that never expires.
local function put(name, ttl, command, ...)
  local there = lengthen(redis.call, name, ttl)
  redis.call(command, name, ...)
  if there == 0 then redis.call('pexpire', name, ttl) end
end
