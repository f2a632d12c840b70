-- Materialize a decision in one segment, in one step; idempotent. Drop what the writers lost, remove
-- their pins, apply or drop the pending acks, and raise high-position (INV-3, INV-9).
-- KEYS[2]  {seg:<id>}:pins, KEYS[3] {seg:<id>}:pin-order, KEYS[4] {seg:<id>}:dropped
-- KEYS[5]  {seg:<id>}:closed, KEYS[6] {seg:<id>}:resolved, KEYS[7] {seg:<id>}:state
-- KEYS[8]  {seg:<id>}:events (stream)
-- KEYS[9]  {seg:<id>}:resolved-order:<TC>  zset TxnId by counter: which marks closing removes
-- KEYS[10] {seg:<id>}:dropped-from  hash writer -> where it was pinned (see seg_floor.lua)
-- ARGV[4]  TxnId, ARGV[5] TC, ARGV[6] counter, ARGV[7] COMMITTED | ABORTED
-- ARGV[8]  highest position that a winner has a receipt for, or ''
-- ARGV[9]  number of writers W, then W pairs: writer, 'WON' | bound from which on it is dropped
-- then     number of subscriptions S, then S times four keys: of the cursor, the pending acks, the
--          acknowledged ranges, the ranges of this transaction (see _ranges.lua)
-- -> {seq, 'OK' | 'MORE', writers dropped, cursors moved} | {seq, 'ALREADY'} | {seq, 'CLOSED'}
--    {seq, 'CONFLICT'}  the other decision was materialized here before: the header has lost it (INV-1)
-- MORE: it has locked more ranges than one step gives up; call again. Its record in the pending acks goes
-- with the last of them, so that neither a reset nor `closed` comes in between.
--    {seq, 'CLOSED'} as well if the segment was deleted and has nothing of the transaction. Where its
--    topic is being deleted, see seg_fence.lua, pins are there until then. Whoever meets one still needs
--    the header, which may go once this was done.
local closed = redis.call('HGET', KEYS[5], ARGV[5])
if closed and tonumber(ARGV[6]) < tonumber(closed) then
  return {seq, 'CLOSED'}
end
local decided = redis.call('HGET', KEYS[6], ARGV[4])
if decided and decided ~= ARGV[7] then
  return {seq, 'CONFLICT'}
end
let_through()
local done = 0
local dropped = 0
local moved = 0
local more = false
local at = 10
for _ = 1, tonumber(ARGV[9]) do
  local writer = ARGV[at]
  local fate = ARGV[at + 1]
  at = at + 2
  local pin = redis.call('HGET', KEYS[2], writer)
  -- Without its pin the writer has been resolved already, or never came to append.
  if pin then
    local bound = string.sub(pin, 1, string.find(pin, '|', 1, true) - 1)
    if fate ~= 'WON' then
      redis.call('HSET', KEYS[4], writer, fate .. '|' .. ARGV[4])
      redis.call('HSET', KEYS[10], writer, bound)
      dropped = dropped + 1
    end
    redis.call('HDEL', KEYS[2], writer)
    redis.call('ZREM', KEYS[3], bound .. '|' .. writer)
    done = done + 1
  end
end
local subscriptions = tonumber(ARGV[at])
at = at + 1
for _ = 1, subscriptions do
  local cursor_key = ARGV[at]
  local pending_key = ARGV[at + 1]
  local ranges_key = ARGV[at + 2]
  local own_key = ARGV[at + 3]
  at = at + 4
  local pending = redis.call('HGET', pending_key, ARGV[4])
  -- A cursor moves only from a pending ack that is still there.
  if pending then
    local ack = cjson.decode(pending)
    local applies = ARGV[7] == 'COMMITTED'
      and redis.call('HGET', cursor_key, 'generation') == ack.generation
    local left, advanced = false, 0
    if not ack.last then
      left, advanced = settle(ranges_key, own_key, cursor_key, ARGV[4], applies)
    elseif applies then
      -- Whoever acknowledges from here on is through with what lies before, replays included.
      redis.call('HSET', cursor_key, 'position', ack.last, 'txn', ARGV[4], 'sink', ack.sink,
        'batch', ack.batch, 'released', ack.start)
      advanced = 1
    end
    if left then
      more = true
    else
      redis.call('HDEL', pending_key, ARGV[4])
    end
    done = done + 1
    moved = moved + advanced
  end
end
if retired then
  if done == 0 then
    return {seq, 'CLOSED'}
  end
  return {changed(), more and 'MORE' or 'OK', dropped, moved}
end
local fresh = redis.call('HSETNX', KEYS[6], ARGV[4], ARGV[7])
if fresh == 1 then
  redis.call('ZADD', KEYS[9], ARGV[6], ARGV[4])
end
if done == 0 and fresh == 0 then
  return {seq, 'ALREADY'}
end
if ARGV[7] == 'COMMITTED' and ARGV[8] ~= '' then
  local high = redis.call('HGET', KEYS[7], 'high-position')
  if not high or high < ARGV[8] then
    redis.call('HSET', KEYS[7], 'high-position', ARGV[8])
  end
end
-- Also where more is left: the pins are gone, and who would call again may be dead.
redis.call('XADD', KEYS[8], 'MAXLEN', '~', '1024', '*', 'type', 'resolved', 'txn', ARGV[4],
  'decision', ARGV[7])
return {changed(), more and 'MORE' or 'OK', dropped, moved}
