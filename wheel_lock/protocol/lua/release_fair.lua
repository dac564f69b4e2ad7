-- flags: allow-oom,allow-cross-slot-keys
-- Release many fair locks, each only where its token still matches, or leave their queues, and wake the new head of each.
-- KEYS: none.  ARGV: name, token, queue, expiries of its waiters, and wake-up channel of each lease.
-- Reply: a flat list of the exceptions only: 1-based index, then 0 (gone), 1 (another's token) or the error's text.
-- One lease: KEYS[1], ARGV[1], KEYS[2], KEYS[3], ARGV[2]
-- include: held
-- include: number
-- include: queue
local argv = ARGV
local function leave(name, token, queue, alive, channel)
  local value = redis.pcall('get', name)
  if value == token then redis.call('del', name) end
  local me = string.sub(token, 1, -23)
  -- An error about a queue key of another type must not be reported as another's token.
  redis.pcall('zrem', queue, me)
  redis.pcall('zrem', alive, me)
  local well, first = pcall(head, queue, alive)
  if well and first and (not value or value == token) then redis.pcall('publish', channel, first) end
  return value
end
local out, n = {}, 0
for i = 1, #argv, 5 do
  local well, value = pcall(leave, argv[i], argv[i + 1], argv[i + 2], argv[i + 3], argv[i + 4])
  local status = nil
  if type(value) == 'table' then
    status = value.err
  elseif not well then
    status = tostring(value)
  elseif not value then
    status = 0
  elseif value ~= argv[i + 1] then
    status = 1
  end
  if status then
    out[n + 1] = (i + 4) / 5
    out[n + 2] = status
    n = n + 2
  end
end
return out
