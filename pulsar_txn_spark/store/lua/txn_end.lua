-- Decide a transaction: OPEN -> COMMITTED | ABORTED, once (INV-1). This is the linearization point.
-- KEYS[2]  {tc<N>}:txn:<TxnId>
-- KEYS[3]  {tc<N>}:idx:txn-by-deadline, KEYS[4] {tc<N>}:idx:txn-open
-- KEYS[5]  {tc<N>}:idx:txn-by-final-state  zset '<state>|<TxnId>' by finalized_ms
-- KEYS[#KEYS] {tc<N>}:metrics  hash of counts; what happens to it changes no state and no seq
-- ARGV[4]  TxnId, ARGV[5] COMMITTED | ABORTED, ARGV[6] outcome (winners and bounds)
-- ARGV[7]  who: 'nonce' (the owner), 'fence' (a newer attempt),
--          'admin' (an administrator), 'expired' (anybody, once the lease is over); only the owner
--          may commit
-- ARGV[8]  nonce of the owner
-- ARGV[9...] counts to add if it is decided now: field, amount, and so on
-- -> {seq, 'OK', state, outcome}       decided now
--    {seq, 'DECIDED', state, outcome, nonce} decided before
--    {seq, 'FENCED'} | {seq, 'ALIVE', deadline_ms, now_ms} | {seq, 'ABSENT'} | {seq, 'ILLEGAL'}
local header = redis.call('HMGET', KEYS[2], 'state', 'nonce', 'deadline_ms', 'outcome')
-- Counting never fails a decision: pcall.
local function count(field, amount)
  redis.pcall('HINCRBY', KEYS[#KEYS], field, amount)
end
local function attempted(result)
  count('pulsar_txn_metadata_store_header_cas_total|' .. result, 1)
end
if not header[1] then
  attempted('reject')
  return {seq, 'ABSENT'}
end
if header[1] ~= 'OPEN' then
  attempted('conflict')
  return {seq, 'DECIDED', header[1], header[4] or '', header[2]}
end
if ARGV[5] ~= 'COMMITTED' and ARGV[5] ~= 'ABORTED' then
  attempted('reject')
  return {seq, 'ILLEGAL'}
end
if ARGV[7] == 'nonce' then
  if header[2] ~= ARGV[8] then
    attempted('reject')
    return {seq, 'FENCED'}
  end
elseif ARGV[5] ~= 'ABORTED' then
  attempted('reject')
  return {seq, 'ILLEGAL'}
elseif ARGV[7] == 'expired' then
  local now = now_ms()
  if tonumber(header[3]) > now then
    attempted('reject')
    return {seq, 'ALIVE', header[3], text(now)}
  end
elseif ARGV[7] ~= 'fence' and ARGV[7] ~= 'admin' then
  attempted('reject')
  return {seq, 'ILLEGAL'}
end
local finalized = text(now_ms())
redis.call('HSET', KEYS[2], 'state', ARGV[5], 'outcome', ARGV[6], 'finalized_ms', finalized)
redis.call('ZREM', KEYS[3], ARGV[4])
redis.call('ZREM', KEYS[4], ARGV[4])
redis.call('ZADD', KEYS[5], finalized, ARGV[5] .. '|' .. ARGV[4])
attempted('ok')
if ARGV[5] == 'COMMITTED' then
  count('pulsar_txn_commits_total', 1)
else
  local causes = {nonce = 'owner', fence = 'newer-attempt', expired = 'lease-over', admin = 'administrator'}
  count('pulsar_txn_aborts_total|' .. causes[ARGV[7]], 1)
end
for i = 9, #ARGV, 2 do
  count(ARGV[i], ARGV[i + 1])
end
return {changed(), 'OK', ARGV[5], ARGV[6]}
