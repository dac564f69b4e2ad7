-- A sorted set of holders: one member each, whose score is its expiry in ms by the server's clock. The score is positive for
-- shared holders (r: a reader, p: a permit), negative for w: a writer, i: a waiting writer, q: a waiting reader, and t: the
-- readers' turn. So shared members and the others are one range each.
-- include: expiry
local time = redis.call('time')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- The identity of a waiter, also after its grant: its members without their last 22 characters, which are a secret.
local function waiter(letter, member)
  return letter .. ':' .. string.sub(member, 3, math.max(#member - 22, 24))
end
local function purge(name)
  redis.call('zremrangebyscore', name, -now, now)
end
-- The key lives as long as the last of its members. (nil if it has none.)
last = function(name)
  local first = tonumber(redis.call('zrange', name, 0, 0, 'WITHSCORES')[2])
  if not first then return nil end
  -- A score of inf, which no script writes, is not a time-to-live.
  return math.min(math.max(-first, tonumber(redis.call('zrange', name, -1, -1, 'WITHSCORES')[2])) - now, 9007199254740991)
end
-- Add a member, or have an existing one last for ttl ms, unless it lasts longer. `sign` is the sign of its score.
local function enter(name, sign, member, ttl)
  local expiry = math.max(now + tonumber(ttl), math.abs(tonumber(redis.call('zscore', name, member) or '0')))
  put(name, ttl, 'zadd', sign * expiry, member)
end
