-- Note up to where a query will not ask again: Spark has noted the batch as done.
-- KEYS[2]  {seg:<id>}:cursor:<subscription>
-- ARGV[4]  query id, ARGV[5] position
-- -> {seq, 'OK'} | {seq, 'ALREADY'} | {seq, 'OWNED', query id} | {seq, 'CURSOR', position} (not so far yet)
local cursor = redis.call('HMGET', KEYS[2], 'query', 'position', 'released')
if retired or not cursor[2] then
  return {seq, 'ALREADY'}
end
if cursor[1] ~= ARGV[4] then
  return {seq, 'OWNED', cursor[1] or ''}
end
if cursor[2] < ARGV[5] then
  return {seq, 'CURSOR', cursor[2]}
end
if not cursor[3] or cursor[3] >= ARGV[5] then
  return {seq, 'ALREADY'}
end
let_through()
redis.call('HSET', KEYS[2], 'released', ARGV[5])
return {changed(), 'OK'}
