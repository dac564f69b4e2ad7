-- flags: allow-oom,allow-cross-slot-keys
-- Release many exclusive locks, each only where its token still matches, and wake their waiters.
-- KEYS: none.  ARGV: name, token and wake-up channel of each lease.
-- Reply: a flat list of the exceptions only: 1-based index, then 0 (gone), 1 (another's token) or the error's text.
-- One lease: KEYS[1], ARGV[1], ARGV[2]
-- Locals: a lookup in a global table costs as much as the compare itself, twice per lease.
local pcall, argv = redis.pcall, ARGV
local out, n = {}, 0
for i = 1, #argv, 3 do
  local value = pcall('get', argv[i])
  local status = nil
  if value == argv[i + 1] then
    local done = pcall('del', argv[i])
    if type(done) == 'table' then status = done.err else pcall('publish', argv[i + 2], '0') end
  elseif type(value) == 'table' then
    status = value.err
  elseif value then
    status = 1
  else
    status = 0
  end
  if status then
    out[n + 1] = (i + 2) / 3
    out[n + 2] = status
    n = n + 2
  end
end
return out
