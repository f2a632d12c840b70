-- Close a segment for the transactions of a TC below a counter: they register nothing more here.
-- Refused while one of them still has a pin or a pending ack here. What finished transactions have
-- left is found by its order, so that it costs what is removed and not what is there.
-- KEYS[2]  {seg:<id>}:pins, KEYS[3] {seg:<id>}:closed, KEYS[4] {seg:<id>}:resolved
-- KEYS[5]  {seg:<id>}:subscriptions, KEYS[6] {seg:<id>}:resolved-order:<TC>
-- ARGV[4]  TC, ARGV[5] counter F, ARGV[6] key prefix of pending acks
-- ARGV[7]  how many resolved marks to remove in one step
-- -> {seq, 'OK' | 'ALREADY', closed} | {seq, 'PENDING', TxnId}
--    {seq, 'MORE', closed}  it is closed, and there are more marks to remove: ask again
--    {seq, 'ALREADY'} as well if the segment was deleted
if retired then
  return {seq, 'ALREADY'}
end
local closed = redis.call('HGET', KEYS[3], ARGV[4])
local limit = tonumber(ARGV[5])
local fresh = not closed or tonumber(closed) < limit
local function older(txn)
  local colon = string.find(txn, ':', 1, true)
  return string.sub(txn, 1, colon - 1) == ARGV[4] and tonumber(string.sub(txn, colon + 1)) < limit
end
if fresh then
  for _, pin in ipairs(redis.call('HVALS', KEYS[2])) do
    local txn = string.sub(pin, string.find(pin, '|', 1, true) + 1)
    if older(txn) then
      return {seq, 'PENDING', txn}
    end
  end
  for _, subscription in ipairs(redis.call('SMEMBERS', KEYS[5])) do
    for _, txn in ipairs(redis.call('HKEYS', ARGV[6] .. subscription)) do
      if older(txn) then
        return {seq, 'PENDING', txn}
      end
    end
  end
  closed = ARGV[5]
  let_through()
  redis.call('HSET', KEYS[3], ARGV[4], closed)
end
-- Below `closed` every script refuses without looking for a mark.
local marks = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', '(' .. closed, 'LIMIT', '0', ARGV[7])
if #marks > 0 then
  redis.call('HDEL', KEYS[4], unpack(marks))
  redis.call('ZREM', KEYS[6], unpack(marks))
end
if #marks == tonumber(ARGV[7]) then
  return {changed(), 'MORE', closed}
end
if fresh then
  return {changed(), 'OK', closed}
end
if #marks > 0 then
  return {changed(), 'ALREADY', closed}
end
return {seq, 'ALREADY', closed}
