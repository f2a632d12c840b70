-- Add a topic to the catalogue. Each time it gets another stamp, so that nobody removes what was added
-- after he has looked (see catalog_remove.lua).
-- KEYS[2]  {meta}:topics        set of full topic names
-- KEYS[3]  {meta}:topic-stamps  hash name -> stamp
-- ARGV[4]  topic
-- -> {seq, 'OK', stamp}
local stamp = text(tonumber(tag[3]) + 1)
redis.call('SADD', KEYS[2], ARGV[4])
redis.call('HSET', KEYS[3], ARGV[4], stamp)
return {changed(), 'OK', stamp}
