-- Record participants before they are touched, and extend the lease. Refused after the decision:
-- what a decided header's intents say is therefore all there is (INV-6).
-- KEYS[2]  {tc<N>}:txn:<TxnId>, KEYS[3] {tc<N>}:intents:<TxnId>
-- KEYS[4]  {tc<N>}:idx:txn-by-deadline
-- ARGV[4]  nonce, ARGV[5] TxnId, ARGV[6] timeout_ms, ARGV[7...] intents (none = a heartbeat)
-- -> {seq, 'OK'} | what _open_txn.lua answers
if #ARGV < 7 then
  let_through()
end
for i = 7, #ARGV do
  redis.call('SADD', KEYS[3], ARGV[i])
end
local deadline = text(now_ms() + tonumber(ARGV[6]))
redis.call('HSET', KEYS[2], 'deadline_ms', deadline)
redis.call('ZADD', KEYS[4], deadline, ARGV[5])
return {changed(), 'OK'}
