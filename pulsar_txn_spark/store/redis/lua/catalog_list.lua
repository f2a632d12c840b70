-- List the catalogue.
-- KEYS[2]  {meta}:topics
-- -> {seq, 'OK', topic...}
local result = redis.call('SMEMBERS', KEYS[2])
table.insert(result, 1, 'OK')
table.insert(result, 1, seq)
return result
