-- An expiry only ever becomes longer here: a call that something on its way has held up must not undo what came after it.
-- (The call is redis.call where an error ends the script, redis.pcall where it is returned.)
local last  -- where a key has members that expire one by one: for how long its last one has time, in ms
local function lengthen(call, name, ttl)
  local left = call('pttl', name)
  if type(left) == 'table' then return left end
  if left >= tonumber(ttl) then return 1 end
  -- The key has lost its expiry. It gets another, which must not cut a member short, unless that claims more than 2**52 ms.
  if left == -1 and last then
    ttl = string.format('%.0f', math.min(math.max(tonumber(ttl), last(name) or 0), 4503599627370496))
  end
  return call('pexpire', name, ttl)
end
-- Have a key last for ttl ms, if it does not last longer. Returns 1, 0 where there is no key, or the error.
-- What GT refuses lasts longer, has lost its expiry, or is gone. The plain form has no line with it: Redis 7 brought it.
local function prolong(call, name, ttl)
  if redis.pcall('pexpire', name, ttl, 'GT') == 1 then return 1 end
  return lengthen(call, name, ttl)
end
-- Write into a key that expires. PEXPIRE comes first, though there may be no key yet: if it is refused nothing has been
-- written, and if it is not it will not be refused behind the write, where it would leave a key that never expires.
local function put(name, ttl, command, ...)
  local there = lengthen(redis.call, name, ttl)
  redis.call(command, name, ...)
  if there == 0 then redis.call('pexpire', name, ttl) end
end
