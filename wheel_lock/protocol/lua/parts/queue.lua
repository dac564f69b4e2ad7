-- The queue of a fair lock: who waits, by ticket, and until when each is taken to be alive, by the server's clock.
local time = redis.call('time')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- The first who is alive; the dead before him are thrown out.
local function head(queue, alive)
  while true do
    local first = redis.call('zrange', queue, 0, 0)[1]
    if not first then return nil end
    local expiry = tonumber(redis.call('zscore', alive, first) or '0')
    if expiry > now then return first, expiry end
    redis.call('zrem', queue, first)
    redis.call('zrem', alive, first)
  end
end
