-- Let one process at a time maintain a topic: two that trim the same log at once would get in each
-- other's way. No safety of the metadata hangs on it.
-- KEYS[2]  {topic:<name>}:topology, KEYS[3] {topic:<name>}:properties
-- ARGV[4]  who asks, ARGV[5] for how many ms, ARGV[6] instance id of the topic that is meant ('' = any)
-- -> {seq, 'OK'} | {seq, 'OWNED', by whom}
--    {seq, 'ABSENT'} (no such topic, or it is being deleted)
--    {seq, 'CONFLICT', instance id} (it was deleted and created again)
local topic = redis.call('HMGET', KEYS[2], 'version', 'incarnation', 'deleting')
if not topic[1] or topic[3] then
  return {seq, 'ABSENT'}
end
if ARGV[6] ~= '' and topic[2] and topic[2] ~= ARGV[6] then
  return {seq, 'CONFLICT', topic[2]}
end
local lease = redis.call('HGET', KEYS[3], '__upkeep')
if lease then
  local blank = string.find(lease, ' ', 1, true)
  local owner = string.sub(lease, blank + 1)
  if owner ~= ARGV[4] and tonumber(string.sub(lease, 1, blank - 1)) > now_ms() then
    return {seq, 'OWNED', owner}
  end
end
let_through()
redis.call('HSET', KEYS[3], '__upkeep', text(now_ms() + tonumber(ARGV[5])) .. ' ' .. ARGV[4])
return {changed(), 'OK'}
