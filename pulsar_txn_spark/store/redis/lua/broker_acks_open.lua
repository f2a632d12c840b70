-- Open what a broker keeps of the acknowledgements that transactions make in a subscription of
-- Pulsar's. From then on nothing is written any more by those that have opened it before.
-- KEYS[2]  {seg:<id>}:broker-acks-owner:<subscription>  hash {owner, step, cursor, noted, new:<id>...}
-- KEYS[3]  {seg:<id>}:broker-acks:<subscription>        hash of records
-- ARGV[4]  id that the cursor has
-- -> {seq, 'OK', owner} | {seq, 'LOST', the cursor that is known | ''} (nothing was changed)
--    {seq, 'RETIRED'}   the segment was deleted
if retired then
  return {seq, 'RETIRED'}
end
local known = redis.call('HGET', KEYS[2], 'cursor')
if known ~= ARGV[4] then
  local noted = redis.call('HGET', KEYS[2], 'new:' .. ARGV[4])
  if not noted then
    return {seq, 'LOST', known or ''}
  end
  -- What is there is of a subscription that was deleted. Ids that were noted later stay: a cursor
  -- may have one of them since, and this request may be late.
  local fields = redis.call('HGETALL', KEYS[2])
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 4) == 'new:' and tonumber(fields[i + 1]) <= tonumber(noted) then
      redis.call('HDEL', KEYS[2], fields[i])
    end
  end
  redis.call('UNLINK', KEYS[3])
end
let_through()
local owner = redis.call('HINCRBY', KEYS[2], 'owner', 1)
redis.call('HSET', KEYS[2], 'step', '0', 'cursor', ARGV[4])
return {changed(), 'OK', text(owner)}
