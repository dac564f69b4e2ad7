-- flags:
-- Acquire one lock in the layout of Redisson's RLock: a hash with one field, the holder, whose value is the hold count.
-- KEYS: name, and a fence key if a fence is requested.  ARGV: field, ttl in ms, ttl of the fence key in ms.
-- Reply: the fence or 0 (granted), or a list: the holder's remaining time in ms, -1 if it does not expire, and a type;
-- see include/held.
-- include: expiry
-- include: held
-- include: number
-- include: fence
-- Return whether the key is a hash but not a lock, which has one field that ends with a number. (False without the right to ask.)
local function is_foreign(name)
  local fields = redis.pcall('hlen', name)
  if fields == 1 then fields = redis.pcall('hkeys', name) end
  if type(fields) ~= 'table' then return true end
  return not fields.err and not string.find(fields[1], ':%d+$')
end
local fence, problem = 0, nil
if KEYS[2] then
  fence, problem = draw_fence(KEYS[2])
  if not fence then return problem end
end
-- This field exists already: an earlier attempt of this lease was granted, and its reply was lost.
local there = redis.call('exists', KEYS[1]) == 1
local mine = redis.pcall('hexists', KEYS[1], ARGV[1])
if there and mine ~= 1 then
  local reply = held(KEYS[1], mine)
  if mine == 0 and is_foreign(KEYS[1]) then reply[2] = 'hash of other fields' end
  return reply
end
if KEYS[2] then keep_fence(KEYS[2], fence, ARGV[3]) end
if there then
  prolong(redis.call, KEYS[1], ARGV[2])
else
  put(KEYS[1], ARGV[2], 'hset', ARGV[1], 1)
end
return fence
