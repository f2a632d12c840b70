-- Delete a subscription in a segment: it retains nothing any more.
-- KEYS[2]  {seg:<id>}:cursor:<subscription>, KEYS[3] {seg:<id>}:pending-acks:<subscription>
-- KEYS[4]  {seg:<id>}:subscriptions, KEYS[5] {seg:<id>}:ack-ranges:<subscription>
-- ARGV[4]  name
-- -> {seq, 'OK'} | {seq, 'ABSENT'} | {seq, 'PENDING', TxnId}
local pending = redis.call('HKEYS', KEYS[3])
if #pending > 0 then
  return {seq, 'PENDING', pending[1]}
end
if redis.call('UNLINK', KEYS[2], KEYS[5]) + redis.call('SREM', KEYS[4], ARGV[4]) == 0 then
  return {seq, 'ABSENT'}
end
return {changed(), 'OK'}
