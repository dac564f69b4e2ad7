-- Return the reply for a key that is not a sorted set of holders; nil if it is one, or does not exist.
-- include: foreign
local function unfit(name)
  local card = redis.pcall('zcard', name)
  if type(card) == 'table' then return is_of_other_type(card) and held(name, card) or card end
  return is_foreign(name) and {redis.call('pttl', name), 'zset of other members'} or nil
end
