-- Delete the operation records and staged writes of a decided transaction.
-- KEYS[2]  {tc<N>}:txn:<TxnId>, KEYS[3] {tc<N>}:txn-op:<TxnId>, KEYS[4] {tc<N>}:stage:<nonce>
-- KEYS[5]  {tc<N>}:idx:txn-unmaterialized
-- ARGV[4]  'materialized', once every participant has, ARGV[5] TxnId
-- -> {seq, 'OK'} | {seq, 'OPEN'} | {seq, 'ABSENT'}
local state = redis.call('HGET', KEYS[2], 'state')
if not state then
  return {seq, 'ABSENT'}
end
if state == 'OPEN' then
  return {seq, 'OPEN'}
end
redis.call('DEL', KEYS[3], KEYS[4])
redis.call('HSET', KEYS[2], 'materialized', '1')
redis.call('ZREM', KEYS[5], ARGV[5])
return {changed(), 'OK'}
