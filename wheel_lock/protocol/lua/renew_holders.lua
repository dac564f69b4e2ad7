-- flags: allow-oom,allow-cross-slot-keys
-- Renew many leases that are members of sorted sets: prolong their expiry, only where it has not passed.
-- KEYS: none.  ARGV: ttl in ms, then name and member of each lease.
-- Reply: a flat list of the exceptions only: 1-based index, then 0 (gone) or the error's text.
-- One lease: ARGV[1], KEYS[1], ARGV[2]
-- include: holders
local pcall, argv = redis.pcall, ARGV
local ttl = tonumber(argv[1])
local expiry = now + ttl
local out, n = {}, 0
for i = 2, #argv, 2 do
  local name = argv[i]
  local score = pcall('zscore', name, argv[i + 1])
  local status = nil
  if type(score) == 'string' then
    score = tonumber(score)
    if math.abs(score) > now then
      -- The key first: if that is refused, no member outlasts the key.
      local done = prolong(pcall, name, ttl)
      if type(done) ~= 'table' and math.abs(score) < expiry then
        done = pcall('zadd', name, score > 0 and expiry or -expiry, argv[i + 1])
      end
      if type(done) == 'table' then status = done.err end
    else
      status = 0
    end
  elseif type(score) == 'table' then
    status = score.err
  else
    status = 0
  end
  if status then
    out[n + 1] = i / 2
    out[n + 2] = status
    n = n + 2
  end
end
return out
