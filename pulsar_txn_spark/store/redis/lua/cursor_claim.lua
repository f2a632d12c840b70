-- Claim a subscription in a segment for one query: set its cursor if it has none. Of several
-- sources that claim it for that query, the one that started last is alive (INV-9).
-- KEYS[2]  {seg:<id>}:cursor:<subscription>  hash position, query, generation, source, txn, sink, batch,
--          released: up to where nobody will ask again, as Spark may replay its last batch. Without
--          it that is the position: clients acknowledge what they never read again.
--          planted: '<start>|<stamp>|<next segment>', where a query that started made it. That is the
--          start, the catalogue's last stamp then, and the number that the next segment of the topic
--          would get then. Earlier versions wrote no stamp.
--          moved: '1' from an administrator's putting it elsewhere to the next claim
--          begun: where the query went on that took it over from nobody. Only behind that Spark has
--          noted a batch of that query as done, which says that the query has passed the cursor
-- KEYS[3]  {seg:<id>}:subscriptions          set of names
-- ARGV[4]  query id, ARGV[5] source epoch, ARGV[6] position to start at, ARGV[7] name
-- ARGV[8]  '1' if the caller goes on at that position and nowhere else
-- ARGV[9]  '1' to tell only what the answer would be, and change nothing
-- -> {seq, 'OK', position, generation, '1' if this changed anything or ''}
--    {seq, 'OWNED', query id} | {seq, 'FENCED', source epoch}
--    {seq, 'CHANGED', position}  it was reset since this source started, or it was put elsewhere
--    {seq, 'DELETED'} as well if the segment was deleted
if retired then
  return {seq, 'DELETED'}
end
local asks_only = ARGV[9] == '1'
local cursor = redis.call('HMGET', KEYS[2], 'query', 'source', 'position', 'generation',
  'moved', 'released')
if not cursor[3] then
  if asks_only then
    return {seq, 'OK', ARGV[6], '1', '1'}
  end
  redis.call('HSET', KEYS[2], 'query', ARGV[4], 'source', ARGV[5], 'position', ARGV[6],
    'generation', '1', 'released', ARGV[6])
  redis.call('SADD', KEYS[3], ARGV[7])
  return {changed(), 'OK', ARGV[6], '1', '1'}
end
if not cursor[1] or cursor[1] == '' then
  -- Reset: the next query takes the subscription over at the position where it stands. Not the one
  -- that runs, which nobody has stopped, and not one that goes on elsewhere and would fail then.
  if tonumber(cursor[2] or '0') >= tonumber(ARGV[5])
      or (cursor[5] == '1' and ARGV[8] == '1' and cursor[3] ~= ARGV[6]) then
    return {seq, 'CHANGED', cursor[3]}
  end
  if asks_only then
    return {seq, 'OK', cursor[3], cursor[4], '1'}
  end
  let_through()
  redis.call('HSET', KEYS[2], 'query', ARGV[4], 'source', ARGV[5], 'begun', ARGV[6])
  redis.call('HSETNX', KEYS[2], 'released', cursor[3])
  redis.call('HDEL', KEYS[2], 'moved')
  return {changed(), 'OK', cursor[3], cursor[4], '1'}
end
if cursor[1] ~= ARGV[4] then
  return {seq, 'OWNED', cursor[1]}
end
if tonumber(cursor[2]) > tonumber(ARGV[5]) then
  return {seq, 'FENCED', cursor[2]}
end
if cursor[2] == ARGV[5] then
  return {seq, 'OK', cursor[3], cursor[4], ''}
end
if asks_only then
  return {seq, 'OK', cursor[3], cursor[4], '1'}
end
let_through()
redis.call('HSET', KEYS[2], 'source', ARGV[5])
-- A start of the query goes on there: Spark has noted all before it as done. Where the query has read a
-- sealed segment, nothing else may say so, if each of its starts makes a single batch.
if ARGV[8] == '1' and cursor[6] and cursor[6] < ARGV[6] and ARGV[6] <= cursor[3] then
  redis.call('HSET', KEYS[2], 'released', ARGV[6])
end
return {changed(), 'OK', cursor[3], cursor[4], '1'}
