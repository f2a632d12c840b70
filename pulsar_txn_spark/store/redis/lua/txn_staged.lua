-- Read everything that is staged under a nonce.
-- KEYS[2]  {tc<N>}:stage:<nonce>
-- -> {seq, 'OK', field, value...}
local result = redis.call('HGETALL', KEYS[2])
table.insert(result, 1, 'OK')
table.insert(result, 1, seq)
return result
