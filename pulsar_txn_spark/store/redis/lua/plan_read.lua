-- Read what was registered for a micro-batch.
-- KEYS[2]  {query:<id>}:plans:<batch id>
-- -> {seq, 'OK', source, plan...}
local result = redis.call('HGETALL', KEYS[2])
table.insert(result, 1, 'OK')
table.insert(result, 1, seq)
return result
