-- Create the birth record of a tag, if it is not there. Runs without the prelude.
-- KEYS[1]  birth record
-- ARGV[1]  uuid, ARGV[2] epoch, ARGV[3] begins with '+' once {meta} says 'born'
-- -> {seq, 'OK'} | {seq, 'OTHER_STORE', uuid, epoch}
local birth = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'seq', 'history')
local seq = (birth[3] or '1') .. ' ' .. (birth[4] or '')
if birth[1] and (birth[1] ~= ARGV[1] or birth[2] ~= ARGV[2]) then
  return {seq, 'OTHER_STORE', birth[1], birth[2]}
end
if not birth[1] then
  redis.call('HSET', KEYS[1], 'uuid', ARGV[1], 'epoch', ARGV[2], 'seq', '1')
end
if string.sub(ARGV[3], 1, 1) == '+' then
  redis.call('HSET', KEYS[1], 'registered', '1')
end
return {seq, 'OK'}
