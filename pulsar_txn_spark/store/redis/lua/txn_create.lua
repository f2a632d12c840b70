-- Create the header of a transaction, OPEN. One attempt nonce gets one transaction, however often
-- it asks (a lost reply, several tasks at once).
-- KEYS[2]  {tc<N>}:txn-counter
-- KEYS[3]  {tc<N>}:nonces                nonce -> TxnId
-- KEYS[4]  {tc<N>}:idx:txn-by-deadline   zset TxnId by deadline_ms
-- KEYS[5]  {tc<N>}:idx:txn-open          zset TxnId by counter
-- Of a client of Pulsar's own, by a broker's coordinator, also:
-- KEYS[6]  {tc<N>}:idx:txn-pulsar        zset TxnId by counter: see txn_ended.lua
-- KEYS[7]  {tc<N>}:pulsar-epochs         hash: see tc_open.lua
-- ARGV[4]  key prefix of headers, ARGV[5] key prefix of intents, ARGV[6] TC id
-- ARGV[7]  nonce, ARGV[8] owner, ARGV[9] sink, ARGV[10] query id, ARGV[11] batch id,
-- ARGV[12] timeout_ms, ARGV[13...] intents that exist from the start. A writer that is to be named
--          after the transaction is 'ptxn-#-...' there: its number is not known before.
-- -> {seq, 'OK' | 'EXISTS', TxnId, state}; an error once the counters of the TC are used up
--    {seq, 'FENCED'}  another broker has opened the coordinator since: the nonce has an older epoch
local function add_intents(txn)
  local writer = '|ptxn-' .. string.gsub(txn, ':', '-') .. '-'
  local added = 0
  for i = 13, #ARGV do
    local intent = string.gsub(ARGV[i], '|ptxn%-#%-', writer)
    added = added + redis.call('SADD', ARGV[5] .. txn, intent)
  end
  return added
end
if KEYS[7] then
  local pulsar, epoch = string.match(ARGV[7], '^pulsar%-(%d+)%-(%d+)%-')
  if redis.call('HGET', KEYS[7], pulsar) ~= epoch then
    return {seq, 'FENCED'}
  end
end
local known = redis.call('HGET', KEYS[3], ARGV[7])
if known then
  local header = redis.call('HMGET', ARGV[4] .. known, 'state', 'sink')
  -- Who fails a write opens its transaction without knowing its sink, to abort it. An intent is
  -- added as long as it may be (INV-6); who finds a decided one must not touch what it names.
  local added = 0
  if header[1] == 'OPEN' then
    added = add_intents(known)
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
add_intents(txn)
redis.call('HSET', KEYS[3], ARGV[7], txn)
redis.call('ZADD', KEYS[4], deadline, txn)
redis.call('ZADD', KEYS[5], text(counter), txn)
if KEYS[6] then
  redis.call('ZADD', KEYS[6], text(counter), txn)
end
return {changed(), 'OK', txn, 'OPEN'}
