-- A sorted set of holders: each a member of its own, whose score is its own expiry in ms by the server's clock. Who may be
-- there with others (r: a reader, p: a permit) has it as it is, who may not (w: a writer) negative, and so have i: a writer
-- that waits, q: a reader that waits, and t (the turn is the readers'). So the shared and the others are a range each.
local time = redis.call('time')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- The reply where the key is no sorted set; nil where it is one, or is not there.
local function unfit(name)
  local card = redis.pcall('zcard', name)
  if type(card) ~= 'table' then return nil end
  if string.find(tostring(card.err), 'WRONGTYPE', 1, true) then return {redis.call('pttl', name)} end
  return card
end
-- By what a waiter, or one who has waited, is known: the first half of what its members are made of.
local function waiter(letter, member)
  return letter .. ':' .. string.sub(member, 3, 24)
end
local function purge(name)
  redis.call('zremrangebyscore', name, -now, now)
end
-- The key lives as long as the last of its members.
local function keep(name, ttl)
  if redis.call('pttl', name) < tonumber(ttl) then redis.call('pexpire', name, ttl) end
end
