-- Delete a subscription in a segment: it retains nothing any more.
-- KEYS[2]  {seg:<id>}:cursor:<subscription>, KEYS[3] {seg:<id>}:pending-acks:<subscription>
-- KEYS[4]  {seg:<id>}:subscriptions, KEYS[5] {seg:<id>}:ack-ranges:<subscription>
-- ARGV[4]  name
-- ARGV[5]  only where the cursor has not been used since cursor_inherit.lua made it with this query,
--          ARGV[6] source and ARGV[7] position
-- -> {seq, 'OK'} | {seq, 'ABSENT'} | {seq, 'PENDING', TxnId} | {seq, 'CHANGED'}
if ARGV[5] then
  local cursor = redis.call('HMGET', KEYS[2], 'query', 'source', 'position', 'generation')
  local made = {ARGV[5], ARGV[6], ARGV[7], '1'}
  for i = 1, 4 do
    if cursor[i] ~= made[i] then
      return {seq, 'CHANGED'}
    end
  end
end
local pending = redis.call('HKEYS', KEYS[3])
if #pending > 0 then
  return {seq, 'PENDING', pending[1]}
end
if redis.call('UNLINK', KEYS[2], KEYS[5]) + redis.call('SREM', KEYS[4], ARGV[4]) == 0 then
  return {seq, 'ABSENT'}
end
return {changed(), 'OK'}
