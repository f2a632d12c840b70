-- Seals a segment: no entry is appended after this step. Idempotent.
--
-- KEYS[1]  {seg:<id>}:log-state  (see create.lua)
--
-- Returns the number of entries that were ever appended, or -1 = no such segment.
local count = redis.call('HGET', KEYS[1], 'next')
if not count then
  return -1
end
redis.call('HSET', KEYS[1], 'sealed', '1')
return tonumber(count)
