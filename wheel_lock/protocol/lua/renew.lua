-- flags: allow-oom,allow-cross-slot-keys
-- Renew many exclusive leases: prolong the expiry, only where the token still matches.
-- KEYS: none.  ARGV: ttl in ms, then name and token of each lease.
-- Reply: a flat list of the exceptions only: 1-based index, then 0 (gone), 1 (another's token) or the error's text.
-- One lease: ARGV[1], KEYS[1], ARGV[2]
-- include: expiry
-- Locals, and no call of prolong: a lookup in a global table costs as much as the compare itself, and so does a call. The
-- usual case passes one condition.
local pcall, argv = redis.pcall, ARGV
local ttl = argv[1]
local out, n = {}, 0
for i = 2, #argv, 2 do
  local name = argv[i]
  local value = pcall('get', name)
  local ours = value == argv[i + 1]
  local done = ours
  done = ours and pcall('pexpire', name, ttl, 'GT')
  if done ~= 1 then
    local status = nil
    if ours then
      done = lengthen(pcall, name, ttl)
      if type(done) == 'table' then status = done.err elseif done ~= 1 then status = 0 end
    elseif type(value) == 'table' then
      status = value.err
    elseif value then
      status = 1
    else
      status = 0
    end
    if status then
      out[n + 1] = i / 2
      out[n + 2] = status
      n = n + 2
    end
  end
end
return out
