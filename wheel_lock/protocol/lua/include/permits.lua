-- Return the number of permits: that of the key, else that of the caller, else -1; or nil and the error.
local function permits_of(key, instead)
  local text = redis.pcall('get', key) or instead
  if not text then return -1 end
  if type(text) == 'table' and not is_of_other_type(text) then return nil, text end
  local permits = whole(text, 9007199254740991)
  if permits then return permits end
  return nil, redis.error_reply('ERR the permits key of this semaphore holds no number of permits; set_permits() writes one')
end
