-- Read the properties that users have given a topic.
-- KEYS[2]  {topic:<name>}:properties  hash name -> value
-- -> {seq, 'OK', name, value...}
local result = redis.call('HGETALL', KEYS[2])
table.insert(result, 1, 'OK')
table.insert(result, 1, seq)
return result
