-- List the sinks that a query has written to, with the last batch that each has begun.
-- KEYS[2]  {query:<id>}:sinks
-- -> {seq, 'OK', sink, '<batch id>|<attempt>'...}
local result = redis.call('HGETALL', KEYS[2])
table.insert(result, 1, 'OK')
table.insert(result, 1, seq)
return result
