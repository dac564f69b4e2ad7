-- flags: allow-oom,allow-cross-slot-keys
-- Release many reentrant locks, each only where its holder's field is still there, and wake their waiters.
-- KEYS: none.  ARGV: name, field and wake-up channel of each lease.
-- Reply: a flat list of the exceptions only: 1-based index, then 0 (gone), 1 (another's) or the error's text.
-- One lease: KEYS[1], ARGV[1], ARGV[2]
local pcall, argv = redis.pcall, ARGV
local out, n = {}, 0
for i = 1, #argv, 3 do
  local mine = pcall('hexists', argv[i], argv[i + 1])
  local status = nil
  if mine == 1 then
    local done = pcall('del', argv[i])
    if type(done) == 'table' then status = done.err else pcall('publish', argv[i + 2], '0') end
  elseif type(mine) == 'table' then
    status = mine.err
  else
    status = pcall('exists', argv[i])
  end
  if status then
    out[n + 1] = (i + 2) / 3
    out[n + 2] = status
    n = n + 2
  end
end
return out
