-- Create a tag record, if it is not there. Runs without the prelude. A full server takes it: whether the
-- tag may be made, tag_state.lua has said.
-- KEYS[1]  tag record
-- ARGV[1]  uuid, ARGV[2] epoch, ARGV[3] begins with '+' once {meta} says 'born'
-- -> {seq, 'OK'} | {seq, 'OTHER_STORE', uuid, epoch}
local tag = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'seq', 'history')
local seq = (tag[3] or '1') .. ' ' .. (tag[4] or '')
if tag[1] and (tag[1] ~= ARGV[1] or tag[2] ~= ARGV[2]) then
  return {seq, 'OTHER_STORE', tag[1], tag[2]}
end
redis.call('HDEL', KEYS[1], '')
if not tag[1] then
  redis.call('HSET', KEYS[1], 'uuid', ARGV[1], 'epoch', ARGV[2], 'seq', '1')
end
if string.sub(ARGV[3], 1, 1) == '+' then
  redis.call('HSET', KEYS[1], 'registered', '1')
end
return {seq, 'OK'}
