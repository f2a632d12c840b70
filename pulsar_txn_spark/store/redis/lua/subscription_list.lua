-- List the subscriptions of a segment.
-- KEYS[2]  {seg:<id>}:subscriptions
-- -> {seq, 'OK', name...}
local result = redis.call('SMEMBERS', KEYS[2])
table.insert(result, 1, 'OK')
table.insert(result, 1, seq)
return result
