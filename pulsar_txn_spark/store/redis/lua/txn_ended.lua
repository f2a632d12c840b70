-- Note that a broker's coordinator has ended a decided transaction everywhere: in topics and
-- subscriptions of Pulsar's own, too. Until then the header stays (INV-6), and whoever opens the
-- coordinator finds it here and goes on.
-- KEYS[2]  {tc<N>}:txn:<TxnId>, KEYS[3] {tc<N>}:idx:txn-pulsar  zset TxnId by counter
-- ARGV[4]  TxnId
-- -> {seq, 'OK'} | {seq, 'ALREADY'} | {seq, 'OPEN'}
if redis.call('HGET', KEYS[2], 'state') == 'OPEN' then
  return {seq, 'OPEN'}
end
if redis.call('ZREM', KEYS[3], ARGV[4]) == 0 then
  return {seq, 'ALREADY'}
end
return {changed(), 'OK'}
