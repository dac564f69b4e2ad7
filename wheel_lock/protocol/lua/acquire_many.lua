-- flags: allow-cross-slot-keys
-- Acquire many exclusive locks, each independently of the others. Also the form of an acquire that is retried after a
-- broken connection, because it recognises an earlier grant of the same token.
-- KEYS: none.  ARGV: ttl in ms, then name and token of each lease.
-- Reply: a flat list of the exceptions only: 1-based index, then 1 (taken by another) or the error's text.
-- One lease: ARGV[1], KEYS[1], ARGV[2]
-- include: expiry
-- Locals: a lookup in a global table costs as much as the compare itself, twice per lease.
local pcall, argv = redis.pcall, ARGV
local ttl = argv[1]
local out, n = {}, 0
for i = 2, #argv, 2 do
  local done = pcall('set', argv[i], argv[i + 1], 'NX', 'PX', ttl)
  local status = nil
  if not done then
    if pcall('get', argv[i]) == argv[i + 1] then
      done = prolong(pcall, argv[i], ttl)
    else
      status = 1
    end
  end
  if type(done) == 'table' and done.err then status = done.err end
  if status then
    out[n + 1] = i / 2
    out[n + 2] = status
    n = n + 2
  end
end
return out
