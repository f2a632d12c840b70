-- Create the birth record of a tag, if it is not there. Runs without the prelude.
-- KEYS[1]  birth record
-- ARGV[1]  uuid, ARGV[2] epoch
-- -> {seq, 'OK'} | {seq, 'OTHER_STORE', uuid, epoch}
local birth = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'seq')
if birth[1] then
  if birth[1] == ARGV[1] and birth[2] == ARGV[2] then
    return {tonumber(birth[3]), 'OK'}
  end
  return {tonumber(birth[3]), 'OTHER_STORE', birth[1], birth[2]}
end
redis.call('HSET', KEYS[1], 'uuid', ARGV[1], 'epoch', ARGV[2], 'seq', '1')
return {1, 'OK'}
