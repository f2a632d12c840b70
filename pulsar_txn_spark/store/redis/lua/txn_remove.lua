-- Remove the header of a decided transaction. The caller has made sure that every participant has
-- materialized it and is closed for it, and that the pointer knows the decision (INV-6).
-- KEYS[2]  {tc<N>}:txn:<TxnId>, KEYS[3] {tc<N>}:intents:<TxnId>, KEYS[4] {tc<N>}:txn-op:<TxnId>
-- KEYS[5]  {tc<N>}:nonces, KEYS[6] {tc<N>}:idx:txn-by-final-state
-- KEYS[7]  {tc<N>}:idx:txn-unmaterialized (an older version may have left it there)
-- KEYS[8]  {tc<N>}:idx:txn-pulsar
-- ARGV[4]  TxnId
-- -> {seq, 'OK'} | {seq, 'ABSENT'} | {seq, 'OPEN'} | {seq, 'STALE'} (not materialized)
--    {seq, 'PENDING'}  a broker's coordinator has not ended it in every topic of Pulsar's own
local header = redis.call('HMGET', KEYS[2], 'state', 'materialized', 'nonce')
if not header[1] then
  return {seq, 'ABSENT'}
end
if header[1] == 'OPEN' then
  return {seq, 'OPEN'}
end
if not header[2] then
  return {seq, 'STALE'}
end
local counter = string.match(ARGV[4], '%d+$')
if #redis.call('ZRANGEBYSCORE', KEYS[8], counter, counter) > 0 then
  return {seq, 'PENDING'}
end
redis.call('HDEL', KEYS[5], header[3])
redis.call('ZREM', KEYS[6], header[1] .. '|' .. ARGV[4])
redis.call('ZREM', KEYS[7], ARGV[4])
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
return {changed(), 'OK'}
