-- Shut a segment whose topic is being deleted, whoever needs it: from here on nothing is registered there
-- any more, as after seg_retire.lua (INV-5, INV-6). Who has a pin here has written, or may have, what goes
-- with the topic. The caller sees to it that none of those commits without a word.
-- KEYS[2]  {seg:<id>}:pins, KEYS[3] {seg:<id>}:state
-- -> {seq, 'OK' | 'ALREADY', TxnId...}  each transaction that has a pin
local result = {seq, retired and 'ALREADY' or 'OK'}
local seen = {}
for _, pin in ipairs(redis.call('HVALS', KEYS[2])) do
  local txn = string.sub(pin, string.find(pin, '|', 1, true) + 1)
  if not seen[txn] then
    seen[txn] = true
    result[#result + 1] = txn
  end
end
if not retired then
  local contains = redis.call('HEXISTS', KEYS[3], 'contains-txn') == 1
  let_through()
  redis.call('HSET', KEYS[1], 'retired', contains and 'txn' or 'plain')
  result[1] = changed()
end
return result
