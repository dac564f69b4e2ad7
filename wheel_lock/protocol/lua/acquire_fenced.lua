-- flags:
-- Acquire one exclusive lock and draw its fence: a number that grows with every grant of the name.
-- KEYS: name, fence key.  ARGV: token, ttl in ms, ttl of the fence key in ms, '1' where nobody else has this token.
-- Reply: the fence, or a list of one: the holder's remaining time in ms, -1 where it does not expire.
-- include: fence
local fence, problem = draw_fence(KEYS[2])
if not fence then return problem end
-- Our own token there is an earlier try, which was granted and whose reply was lost.
if redis.call('exists', KEYS[1]) == 1 and (ARGV[4] ~= '1' or redis.pcall('get', KEYS[1]) ~= ARGV[1]) then
  return {redis.call('pttl', KEYS[1])}
end
keep_fence(KEYS[2], fence, ARGV[3])
redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
return fence
