-- Read a header and, in the same step, its intents.
-- KEYS[2]  {tc<N>}:txn:<TxnId>, KEYS[3] {tc<N>}:intents:<TxnId>
-- -> {seq, 'OK', now_ms, {field, value...}, {intent...}} | {seq, 'ABSENT'}
local header = redis.call('HGETALL', KEYS[2])
if #header == 0 then
  return {seq, 'ABSENT'}
end
return {seq, 'OK', text(now_ms()), header, redis.call('SMEMBERS', KEYS[3])}
