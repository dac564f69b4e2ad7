-- flags: allow-oom
-- Set the number of permits of a semaphore for all its users, or remove that number, and wake the waiters.
-- KEYS: the key that holds the number.  ARGV: the number, or '' for none, wake-up channel.
-- Reply: 1.
if ARGV[1] == '' then
  redis.call('del', KEYS[1])
else
  redis.call('set', KEYS[1], ARGV[1])
end
redis.pcall('publish', ARGV[2], '0')
return 1
