-- flags: allow-oom,allow-cross-slot-keys
-- Renew many reentrant leases: prolong the expiry, only where the holder's field is still there.
-- KEYS: none.  ARGV: ttl in ms, then name and field of each lease.
-- Reply: a flat list of the exceptions only: 1-based index, then 0 (gone), 1 (another's) or the error's text.
-- One lease: ARGV[1], KEYS[1], ARGV[2]
-- include: expiry
local pcall, argv = redis.pcall, ARGV
local ttl = argv[1]
local out, n = {}, 0
for i = 2, #argv, 2 do
  local name = argv[i]
  local mine = pcall('hexists', name, argv[i + 1])
  local status = nil
  if mine == 1 then
    local done = nil
    done = pcall('pexpire', name, ttl, 'GT')
    if done ~= 1 then done = lengthen(pcall, name, ttl) end
    if type(done) == 'table' then status = done.err elseif done ~= 1 then status = 0 end
  elseif type(mine) == 'table' then
    status = mine.err
  else
    status = pcall('exists', name)
  end
  if status then
    out[n + 1] = i / 2
    out[n + 2] = status
    n = n + 2
  end
end
return out
