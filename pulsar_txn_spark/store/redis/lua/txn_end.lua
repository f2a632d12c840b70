-- Decide a transaction: OPEN -> COMMITTED | ABORTED, once (INV-1). This is the linearization point.
-- KEYS[2]  {tc<N>}:txn:<TxnId>
-- KEYS[3]  {tc<N>}:idx:txn-by-deadline, KEYS[4] {tc<N>}:idx:txn-open
-- KEYS[5]  {tc<N>}:idx:txn-by-final-state  zset '<state>|<TxnId>' by finalized_ms
-- KEYS[6]  {tc<N>}:idx:txn-unmaterialized  zset TxnId by finalized_ms
-- KEYS[7]  {tc<N>}:events (stream)
-- KEYS[#KEYS] {tc<N>}:metrics  hash of counts
-- ARGV[4]  TxnId, ARGV[5] COMMITTED | ABORTED, ARGV[6] outcome (winners and bounds)
-- ARGV[7]  who: 'nonce' (the owner), 'fence' (a newer attempt, or an administrator),
--          'expired' (anybody, once the lease is over); only the owner may commit
-- ARGV[8]  nonce of the owner
-- ARGV[9...] field and amount, and so on: counts to add to the metrics if it is decided now
-- -> {seq, 'OK', state, outcome}       decided now
--    {seq, 'DECIDED', state, outcome, nonce} decided before
--    {seq, 'FENCED'} | {seq, 'ALIVE', deadline_ms, now_ms} | {seq, 'ABSENT'} | {seq, 'ILLEGAL'}
local header = redis.call('HMGET', KEYS[2], 'state', 'nonce', 'deadline_ms', 'outcome')
if not header[1] then
  return {seq, 'ABSENT'}
end
-- Before the state: another process learns nothing of a decided transaction by claiming to be its owner.
if ARGV[7] == 'nonce' and header[2] ~= ARGV[8] then
  return {seq, 'FENCED'}
end
if header[1] ~= 'OPEN' then
  return {seq, 'DECIDED', header[1], header[4] or '', header[2]}
end
if ARGV[5] ~= 'COMMITTED' and ARGV[5] ~= 'ABORTED' then
  return {seq, 'ILLEGAL'}
end
if ARGV[7] ~= 'nonce' and ARGV[5] ~= 'ABORTED' then
  return {seq, 'ILLEGAL'}
end
if ARGV[7] == 'expired' then
  local now = now_ms()
  if tonumber(header[3]) > now then
    return {seq, 'ALIVE', header[3], text(now)}
  end
elseif ARGV[7] ~= 'nonce' and ARGV[7] ~= 'fence' then
  return {seq, 'ILLEGAL'}
end
local finalized = text(now_ms())
let_through()
redis.call('HSET', KEYS[2], 'state', ARGV[5], 'outcome', ARGV[6], 'finalized_ms', finalized)
redis.call('ZREM', KEYS[3], ARGV[4])
redis.call('ZREM', KEYS[4], ARGV[4])
redis.call('ZADD', KEYS[5], finalized, ARGV[5] .. '|' .. ARGV[4])
redis.call('ZADD', KEYS[6], finalized, ARGV[4])
redis.call('XADD', KEYS[7], 'MAXLEN', '~', '1024', '*', 'type', 'decided', 'txn', ARGV[4])
-- Counting never fails a decision: pcall.
for i = 9, #ARGV, 2 do
  redis.pcall('HINCRBY', KEYS[#KEYS], ARGV[i], ARGV[i + 1])
end
return {changed(), 'OK', ARGV[5], ARGV[6]}
