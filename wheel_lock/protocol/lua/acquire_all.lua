-- flags: allow-cross-slot-keys
-- Acquire several exclusive locks, all of them or none.
-- KEYS: none.  ARGV: ttl in ms, then name and token of each lease.
-- Reply: 0 (granted), or a list: the 1-based index of the first that is held, its remaining time in ms, -1 if it does not
-- expire, and a type; see include/held.
-- include: held
-- One lease: ARGV[1], KEYS[1], ARGV[2]
-- include: expiry
local ttl = ARGV[1]
for i = 2, #ARGV, 2 do
  local value = redis.pcall('get', ARGV[i])
  if type(value) == 'table' and not is_of_other_type(value) then return value end
  -- The lease's own token: an earlier attempt of this call was granted, and its reply was lost.
  if value and value ~= ARGV[i + 1] then return {i / 2, unpack(held(ARGV[i], value))} end
end
for i = 2, #ARGV, 2 do
  if not redis.call('set', ARGV[i], ARGV[i + 1], 'NX', 'PX', ttl) then prolong(redis.call, ARGV[i], ttl) end
end
return 0
