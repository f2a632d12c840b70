-- Put a subscription's cursor somewhere else, or leave it where it stands: a new cursor version, owned
-- by nobody. It moves only from where the caller has seen it (INV-9, INV-13).
-- KEYS[2]  {seg:<id>}:cursor:<subscription>, KEYS[3] {seg:<id>}:pending-acks:<subscription>
-- KEYS[4]  {seg:<id>}:subscriptions, KEYS[5] {seg:<id>}:ack-ranges:<subscription>
-- KEYS[6]  {seg:<id>}:state
-- ARGV[4]  name, ARGV[5] position, '' = where it stands
-- ARGV[6]  cursor version as read, '' = there was no cursor
-- ARGV[7]  position as read; where the cursor is to stay, it may have moved since
-- ARGV[8]  '1' if it may begin behind what retention has let go, else ''
-- ARGV[9]  number of the reset among the starts of sources: who started before cannot take it back
-- -> {seq, 'OK', position, cursor version} | {seq, 'PENDING', TxnId}
--    {seq, 'ALREADY', position, cursor version}  this very request was answered before
--    {seq, 'ABSENT'}                         there is no cursor, and none is to be made
--    {seq, 'CHANGED'}                        the cursor is not where the caller has seen it
--    {seq, 'TRIMMED', up to}                 it may not begin behind what retention has let go
--    {seq, 'SINGLE', position, ranges}       it is to stay, and does not say all that is acknowledged
--    {seq, 'DELETED'} as well if the segment was deleted
if retired then
  return {seq, 'DELETED'}
end
local pending = redis.call('HKEYS', KEYS[3])
if #pending > 0 then
  return {seq, 'PENDING', pending[1]}
end
local cursor = redis.call('HMGET', KEYS[2], 'position', 'generation', 'released', 'query', 'source')
if not cursor[1] and (ARGV[5] == '' or ARGV[6] ~= '') then
  return {seq, ARGV[5] == '' and 'ABSENT' or 'CHANGED'}
end
if (cursor[2] or '') ~= ARGV[6] or (ARGV[5] ~= '' and (cursor[1] or '') ~= ARGV[7]) then
  local repeated = cursor[4] == '' and tonumber(cursor[2]) == (tonumber(ARGV[6]) or 0) + 1
    and (ARGV[5] == '' or cursor[1] == ARGV[5])
  if repeated then
    return {seq, 'ALREADY', cursor[1], cursor[2]}
  end
  return {seq, 'CHANGED'}
end
local position = ARGV[5]
if position == '' then
  position = cursor[1]
  local ranges = redis.call('ZCARD', KEYS[5])
  -- A part of an entry has a third number: how many of its messages are acknowledged.
  if ranges > 0 or string.find(position, ':.*:') then
    return {seq, 'SINGLE', position, ranges}
  end
end
local trimmed = redis.call('HGET', KEYS[6], 'trim-to')
if ARGV[5] ~= '' and trimmed and trimmed > position then
  if ARGV[8] ~= '1' then
    return {seq, 'TRIMMED', trimmed}
  end
  position = trimmed
end
if cursor[1] then
  let_through()
end
-- Where the cursor stays, the query before may come back and replay its last batch: what it may read
-- again stays as well.
if not cursor[1] or (cursor[3] and cursor[1] ~= position) then
  redis.call('HSET', KEYS[2], 'released', position)
end
local generation = redis.call('HINCRBY', KEYS[2], 'generation', 1)
-- Who has started before the reset, or has claimed it before, and still runs, cannot take it back.
local source = ARGV[9]
if cursor[5] and tonumber(cursor[5]) > tonumber(source) then
  source = cursor[5]
end
redis.call('HSET', KEYS[2], 'query', '', 'position', position, 'source', source)
redis.call('HDEL', KEYS[2], 'txn', 'sink', 'batch', 'planted')
if position ~= cursor[1] then
  redis.call('HSET', KEYS[2], 'moved', '1')
end
-- Nothing is pending, so that all of these are of the old cursor version and deleted.
redis.call('DEL', KEYS[5])
redis.call('SADD', KEYS[4], ARGV[4])
return {changed(), 'OK', position, text(generation)}
