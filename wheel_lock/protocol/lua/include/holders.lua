-- A sorted set of holders: each a member of its own, whose score is its own expiry in ms by the server's clock. Who may be
-- there with others (r: a reader, p: a permit) has it as it is, who may not (w: a writer) negative, and so have i: a writer
-- that waits, q: a reader that waits, and t (the turn is the readers'). So the shared and the others are a range each.
-- include: expiry
local time = redis.call('time')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- By what a waiter, or one who has waited, is known: the first half of what its members are made of.
local function waiter(letter, member)
  return letter .. ':' .. string.sub(member, 3, 24)
end
local function purge(name)
  redis.call('zremrangebyscore', name, -now, now)
end
-- The key lives as long as the last of its members. (nil where it has none.)
last = function(name)
  local first = tonumber(redis.call('zrange', name, 0, 0, 'WITHSCORES')[2])
  if not first then return nil end
  -- A score of inf, which no script writes, is no time-to-live.
  return math.min(math.max(-first, tonumber(redis.call('zrange', name, -1, -1, 'WITHSCORES')[2])) - now, 9007199254740991)
end
-- Put a member in, or have one that is there last for ttl ms, if it does not last longer. The sign is that of its score.
local function enter(name, sign, member, ttl)
  local expiry = math.max(now + tonumber(ttl), math.abs(tonumber(redis.call('zscore', name, member) or '0')))
  put(name, ttl, 'zadd', sign * expiry, member)
end
