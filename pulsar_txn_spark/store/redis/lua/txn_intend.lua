-- Record participants before they are touched, and extend the lease. Refused after the decision:
-- what a decided header's intents say is therefore all there is (INV-6).
-- KEYS[2]  {tc<N>}:txn:<TxnId>, KEYS[3] {tc<N>}:intents:<TxnId>
-- KEYS[4]  {tc<N>}:idx:txn-by-deadline
-- ARGV[4]  nonce, ARGV[5] TxnId, ARGV[6] timeout_ms, ARGV[7...] intents (none = a heartbeat)
-- -> {seq, 'OK'} | {seq, 'FENCED'} | {seq, 'DECIDED', state} | {seq, 'ABSENT'}
local header = redis.call('HMGET', KEYS[2], 'state', 'nonce')
if not header[1] then
  return {seq, 'ABSENT'}
end
if header[2] ~= ARGV[4] then
  return {seq, 'FENCED'}
end
if header[1] ~= 'OPEN' then
  return {seq, 'DECIDED', header[1]}
end
for i = 7, #ARGV do
  redis.call('SADD', KEYS[3], ARGV[i])
end
local deadline = text(now_ms() + tonumber(ARGV[6]))
redis.call('HSET', KEYS[2], 'deadline_ms', deadline)
redis.call('ZADD', KEYS[4], deadline, ARGV[5])
return {changed(), 'OK'}
