-- Create the header of a transaction, OPEN. One attempt nonce gets one transaction, however often
-- it asks (a lost reply, several tasks at once).
-- KEYS[2]  {tc<N>}:txn-counter
-- KEYS[3]  {tc<N>}:nonces                nonce -> TxnId
-- KEYS[4]  {tc<N>}:idx:txn-by-deadline   zset TxnId by deadline_ms
-- KEYS[5]  {tc<N>}:idx:txn-open          zset TxnId by counter
-- ARGV[4]  key prefix of headers, ARGV[5] key prefix of intents, ARGV[6] TC id
-- ARGV[7]  nonce, ARGV[8] owner, ARGV[9] sink, ARGV[10] query id, ARGV[11] batch id,
-- ARGV[12] timeout_ms, ARGV[13...] intents that exist from the start
-- -> {seq, 'OK' | 'EXISTS', TxnId, state}; an error once the counters of the TC are used up
local known = redis.call('HGET', KEYS[3], ARGV[7])
if known then
  local header = redis.call('HMGET', ARGV[4] .. known, 'state', 'sink')
  -- Who fails a write opens its transaction without knowing its sink, to abort it. An intent is
  -- added as long as it may be (INV-6); who finds a decided one must not touch what it names.
  local added = 0
  if header[1] == 'OPEN' then
    for i = 13, #ARGV do
      added = added + redis.call('SADD', ARGV[5] .. known, ARGV[i])
    end
    if header[2] == '' and ARGV[9] ~= '' then
      redis.call('HSET', ARGV[4] .. known, 'owner', ARGV[8], 'sink', ARGV[9], 'query', ARGV[10],
        'batch', ARGV[11])
      added = added + 1
    end
  end
  if added > 0 then
    return {changed(), 'EXISTS', known, header[1]}
  end
  return {seq, 'EXISTS', known, header[1] or ''}
end
-- A Lua number is a double: beyond 2^53 two transactions would get one id.
if tonumber(redis.call('GET', KEYS[2]) or '0') >= 9007199254740991 then
  return redis.error_reply('the TC has used up its transaction ids: use a new metadata store')
end
local counter = redis.call('INCR', KEYS[2])
local txn = ARGV[6] .. ':' .. text(counter)
local now = now_ms()
local deadline = text(now + tonumber(ARGV[12]))
redis.call('HSET', ARGV[4] .. txn, 'state', 'OPEN', 'nonce', ARGV[7], 'owner', ARGV[8],
  'sink', ARGV[9], 'query', ARGV[10], 'batch', ARGV[11], 'deadline_ms', deadline,
  'created_ms', text(now))
for i = 13, #ARGV do
  redis.call('SADD', ARGV[5] .. txn, ARGV[i])
end
redis.call('HSET', KEYS[3], ARGV[7], txn)
redis.call('ZADD', KEYS[4], deadline, txn)
redis.call('ZADD', KEYS[5], text(counter), txn)
return {changed(), 'OK', txn, 'OPEN'}
