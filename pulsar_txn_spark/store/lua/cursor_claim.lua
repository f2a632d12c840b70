-- Claim a subscription in a segment for one query: set its cursor if it has none. Of several
-- sources that claim it for that query, the one that started last is alive (INV-9).
-- KEYS[2]  {seg:<id>}:cursor:<subscription>  hash position, query, generation, source, txn, sink, batch,
--          released: up to where nobody will ask again (Spark may replay its last batch); without it
--          (clients acknowledge what they never read again) that is the position
-- KEYS[3]  {seg:<id>}:subscriptions          set of names
-- ARGV[4]  query id, ARGV[5] incarnation of the source, ARGV[6] position to start at, ARGV[7] name
-- -> {seq, 'OK', position, generation} | {seq, 'OWNED', query id} | {seq, 'FENCED', incarnation}
--    {seq, 'DELETED'} as well if the segment was deleted
if retired then
  return {seq, 'DELETED'}
end
local cursor = redis.call('HMGET', KEYS[2], 'query', 'source', 'position', 'generation')
if not cursor[3] then
  redis.call('HSET', KEYS[2], 'query', ARGV[4], 'source', ARGV[5], 'position', ARGV[6],
    'generation', '1', 'released', ARGV[6])
  redis.call('SADD', KEYS[3], ARGV[7])
  return {changed(), 'OK', ARGV[6], '1'}
end
if not cursor[1] or cursor[1] == '' then
  -- Reset: the next query takes the subscription over at the position where it stands.
  redis.call('HSET', KEYS[2], 'query', ARGV[4], 'source', ARGV[5])
  redis.call('HSETNX', KEYS[2], 'released', cursor[3])
  return {changed(), 'OK', cursor[3], cursor[4]}
end
if cursor[1] ~= ARGV[4] then
  return {seq, 'OWNED', cursor[1]}
end
if tonumber(cursor[2]) > tonumber(ARGV[5]) then
  return {seq, 'FENCED', cursor[2]}
end
if cursor[2] == ARGV[5] then
  return {seq, 'OK', cursor[3], cursor[4]}
end
redis.call('HSET', KEYS[2], 'source', ARGV[5])
return {changed(), 'OK', cursor[3], cursor[4]}
