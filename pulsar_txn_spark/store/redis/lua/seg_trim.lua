-- Note that the log may delete what lies up to a position, unless a subscription needs it. In one step:
-- so a cursor that is made later begins behind it, and one that was made before is seen (INV-13).
-- KEYS[2]  {seg:<id>}:subscriptions, KEYS[3] {seg:<id>}:state (field trim-to)
-- ARGV[4]  position, ARGV[5] key prefix of cursors
-- -> {seq, 'OK'} | {seq, 'ALREADY'}        it may be trimmed
--    {seq, 'CURSOR', released, subscription}  a subscription needs what lies before
if retired then
  return {seq, 'ALREADY'}
end
for _, name in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  local cursor = redis.call('HMGET', ARGV[5] .. name, 'released', 'position')
  local released = cursor[1] or cursor[2]
  if released and released < ARGV[4] then
    return {seq, 'CURSOR', released, name}
  end
end
local trimmed = redis.call('HGET', KEYS[3], 'trim-to')
if trimmed and trimmed >= ARGV[4] then
  return {seq, 'ALREADY'}
end
let_through()
redis.call('HSET', KEYS[3], 'trim-to', ARGV[4])
return {changed(), 'OK'}
