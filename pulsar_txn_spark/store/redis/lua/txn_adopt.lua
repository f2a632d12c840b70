-- Take over an OPEN transaction of a client of Pulsar's own: whoever served it before is fenced.
-- KEYS[2]  {tc<N>}:txn:<TxnId>, KEYS[3] {tc<N>}:nonces, KEYS[4] {tc<N>}:pulsar-epochs
-- ARGV[4]  TxnId, ARGV[5] nonce that it had, ARGV[6] nonce that it gets
-- -> {seq, 'OK'} | {seq, 'FENCED'} | {seq, 'DECIDED', state} | {seq, 'ABSENT'}. FENCED also if another
--    broker has opened the coordinator since: the nonce that it would get has an older epoch
local header = redis.call('HMGET', KEYS[2], 'state', 'nonce')
if not header[1] then
  return {seq, 'ABSENT'}
end
if header[1] ~= 'OPEN' then
  return {seq, 'DECIDED', header[1]}
end
if header[2] == ARGV[6] then
  return {seq, 'OK'}
end
local pulsar, epoch = string.match(ARGV[6], '^pulsar%-(%d+)%-(%d+)%-')
if header[2] ~= ARGV[5] or redis.call('HGET', KEYS[4], pulsar) ~= epoch then
  return {seq, 'FENCED'}
end
let_through()
redis.call('HSET', KEYS[2], 'nonce', ARGV[6])
redis.call('HDEL', KEYS[3], ARGV[5])
redis.call('HSET', KEYS[3], ARGV[6], ARGV[4])
return {changed(), 'OK'}
