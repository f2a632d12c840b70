-- Set a property of a topic, or remove it.
-- KEYS[2]  {topic:<name>}:topology, KEYS[3] {topic:<name>}:properties  hash name -> value
-- ARGV[4]  instance id of the topic that is meant ('' = any)
-- ARGV[5]  name, ARGV[6] 'set' | 'remove', ARGV[7] value
-- -> {seq, 'OK'}
--    {seq, 'ABSENT'} (no such topic, or it is being deleted, or no such property to remove)
--    {seq, 'CONFLICT', instance id} (it was deleted and created again)
local topic = redis.call('HMGET', KEYS[2], 'version', 'incarnation', 'deleting')
if not topic[1] or topic[3] then
  return {seq, 'ABSENT'}
end
-- A record of an older version has no instance id beside it.
if ARGV[4] ~= '' and topic[2] and topic[2] ~= ARGV[4] then
  return {seq, 'CONFLICT', topic[2]}
end
if ARGV[6] == 'set' then
  if string.sub(ARGV[5], 1, 2) == '__' then
    let_through()
  end
  redis.call('HSET', KEYS[3], ARGV[5], ARGV[7])
elseif redis.call('HDEL', KEYS[3], ARGV[5]) == 0 then
  return {seq, 'ABSENT'}
end
return {changed(), 'OK'}
