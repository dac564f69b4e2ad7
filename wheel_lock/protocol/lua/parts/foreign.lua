-- Whether the key is a sorted set of somebody's own, of whose members nothing may be removed and which must not be given an
-- expiry: looked at at both ends. A lock's members are letter, colon and 22 characters or more, or t; see parts/turns. The
-- sign of a score goes with the letter; see parts/holders.
local function is_foreign(name)
  for _, place in ipairs({0, -1}) do
    local found = redis.call('zrange', name, place, place, 'WITHSCORES')
    local member, letters = found[1], found[1] and tonumber(found[2]) > 0 and '^[rp]:' or '^[wiq]:'
    local is_turn = member == 't' and tonumber(found[2]) < 0
    if member and not is_turn and not (#member >= 24 and string.find(member, letters)) then return true end
  end
  return false
end
