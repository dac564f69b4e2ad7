-- flags: allow-oom,allow-cross-slot-keys
-- Release many leases that are members of sorted sets, and wake the waiters that each makes room for.
-- KEYS: none.  ARGV: name, member, and two wake-up channels of each lease: of shared waiters, and of exclusive ones.
-- Reply: a flat list of the exceptions only: 1-based index, then 0 (gone) or the error's text.
-- One lease: KEYS[1], ARGV[1], ARGV[2], ARGV[3]
-- include: holders
-- include: turns
-- include: foreign
-- include: leave
local argv = ARGV
local out, n = {}, 0
for i = 1, #argv, 4 do
  local well, was_held = pcall(release, argv[i], argv[i + 1], argv[i + 2], argv[i + 3])
  local status = nil
  if not well then
    status = type(was_held) == 'table' and was_held.err or tostring(was_held)
  elseif not was_held then
    status = 0
  end
  if status then
    out[n + 1] = (i + 3) / 4
    out[n + 2] = status
    n = n + 2
  end
end
return out
