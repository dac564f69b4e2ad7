-- The whole number that a text of digits is, if it is no larger than most; else nil. (tonumber also takes nan, inf,
-- 0x10, 1e3, -1 and ' 5', and rounds what is larger than 2^53.)
local function whole(text, most)
  if type(text) ~= 'string' or #text > 16 or not string.find(text, '^%d+$') then return nil end
  local number = tonumber(text)
  return number <= most and number or nil
end
