-- Whether the key is a sorted set of somebody's own, of whose members nothing may be removed and which must not be given an
-- expiry: looked at at both ends. A lock's members are letter, colon and 22 characters or more, or t; see parts/turns.
local function is_foreign(name)
  for _, place in ipairs({0, -1}) do
    local member = redis.call('zrange', name, place, place)[1]
    if member and member ~= 't' and not (#member >= 24 and string.find(member, '^[rpwiq]:')) then return true end
  end
  return false
end
