-- flags:
-- Acquire one exclusive lock and draw its fence: a number that grows with every grant of the name.
-- KEYS: name, fence key.  ARGV: token, ttl in ms, ttl of the fence key in ms, '1' if no other owner has this token, and a
-- fence if the next one must not be less (of a lease that other masters have granted).
-- Reply: the fence, or a list: the holder's remaining time in ms, -1 if it does not expire, and a type; see include/held.
-- include: expiry
-- include: held
-- include: number
-- include: fence
local fence, problem = draw_fence(KEYS[2])
if not fence then return problem end
-- The lease's own token: an earlier attempt was granted, and its reply was lost.
local value = redis.pcall('get', KEYS[1])
local there = redis.call('exists', KEYS[1]) == 1
if there and (ARGV[4] ~= '1' or value ~= ARGV[1]) then return held(KEYS[1], value) end
if there then fence = same_fence(KEYS[2], fence) end
fence = math.max(fence, tonumber(ARGV[5] or 0))
keep_fence(KEYS[2], fence, ARGV[3])
if there then
  prolong(redis.call, KEYS[1], ARGV[2])
else
  redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return fence
