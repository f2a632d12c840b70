-- Read, in one step, everything that decides what of a segment may be read (INV-4). Read LAC first.
-- KEYS[2]  {seg:<id>}:pins, KEYS[3] {seg:<id>}:pin-order, KEYS[4] {seg:<id>}:dropped
-- KEYS[5]  {seg:<id>}:floor, KEYS[6] {seg:<id>}:state
-- ARGV[4]  how many pins at most
-- -> {seq, 'PLAIN'}                         no transaction has ever written here
--    {seq, 'OK', {bound, writer, TxnId...}, {writer, bound|TxnId...}, {TC, counter...}}
-- What a deleted segment contained is known for good (PIP-373).
if redis.call('HEXISTS', KEYS[6], 'contains-txn') == 0 and retired ~= 'txn' then
  return {seq, 'PLAIN'}
end
local pins = {}
for _, member in ipairs(redis.call('ZRANGE', KEYS[3], 0, tonumber(ARGV[4]) - 1)) do
  local bar = string.find(member, '|', 1, true)
  local writer = string.sub(member, bar + 1)
  local pin = redis.call('HGET', KEYS[2], writer)
  pins[#pins + 1] = string.sub(member, 1, bar - 1)
  pins[#pins + 1] = writer
  pins[#pins + 1] = string.sub(pin, string.find(pin, '|', 1, true) + 1)
end
return {seq, 'OK', pins, redis.call('HGETALL', KEYS[4]), redis.call('HGETALL', KEYS[5])}
