-- Read a subscription's cursor in a segment.
-- KEYS[2]  {seg:<id>}:cursor:<subscription>
-- -> {seq, 'OK', field, value...} (no field: there is no such subscription)
local result = redis.call('HGETALL', KEYS[2])
table.insert(result, 1, 'OK')
table.insert(result, 1, seq)
return result
