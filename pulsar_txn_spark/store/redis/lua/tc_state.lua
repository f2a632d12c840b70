-- Tell how a TC is doing: what is open, what is decided and pending, and its counts.
-- KEYS[2]  {tc<N>}:idx:txn-open, KEYS[3] {tc<N>}:idx:txn-by-final-state
-- KEYS[4]  {tc<N>}:idx:txn-unmaterialized, KEYS[5] {tc<N>}:metrics
-- ARGV[4]  key prefix of headers, ARGV[5] how many of the pending ones to list, oldest first
-- -> {seq, 'OK', now_ms, open, TxnId of the oldest open one or '', its created_ms or '', decided,
--     {TxnId, finalized_ms...} of the pending ones, {field, count...}}
local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1] or ''
local created = ''
if oldest ~= '' then
  created = redis.call('HGET', ARGV[4] .. oldest, 'created_ms') or ''
end
local pending = redis.call('ZRANGE', KEYS[4], 0, tonumber(ARGV[5]) - 1, 'WITHSCORES')
return {seq, 'OK', text(now_ms()), redis.call('ZCARD', KEYS[2]), oldest, created,
  redis.call('ZCARD', KEYS[3]), pending, redis.call('HGETALL', KEYS[5])}
