-- Read, in one step, what a subscription has acknowledged in a segment.
-- KEYS[2]  {seg:<id>}:cursor:<subscription>, KEYS[3] {seg:<id>}:pending-acks:<subscription>
-- KEYS[4]  {seg:<id>}:ack-ranges:<subscription>
-- -> {seq, 'OK', position, generation, {TxnId, JSON...}, {range...}} | {seq, 'UNCLAIMED'}
local cursor = redis.call('HMGET', KEYS[2], 'position', 'generation')
if not cursor[1] then
  return {seq, 'UNCLAIMED'}
end
return {seq, 'OK', cursor[1], cursor[2], redis.call('HGETALL', KEYS[3]),
  redis.call('ZRANGE', KEYS[4], 0, -1)}
