-- Replace a topic's topology if its version is the expected one. No version comes twice, also when the
-- topic is deleted and created again (INV-12). The absence of a topic has a version as well, which the
-- tag record keeps. So a version that was read of one instance of a topic never matches in another.
-- A creation that was delayed in the network until its topic was deleted does not bring it back.
-- KEYS[2]  {topic:<name>}:topology  hash {version, record, 'incarnation', deleting}
-- KEYS[3]  {topic:<name>}:properties, to delete with it
-- KEYS[4]  {topic:<name>}:events (stream)
-- ARGV[4]  expected version ('0' = never was there), ARGV[5] new record ('' = delete)
-- ARGV[6]  instance id of the topic ('' = as it is)
-- ARGV[7]  '1' = from here on the topic is being deleted: nothing may be set on it any more
-- ARGV[8]  '1' = a step of deleting a segment: a full server takes it, as it takes deletions of topics
-- -> {seq, 'OK', version} | {seq, 'CONFLICT', version, record ('' if absent)}
--    {seq, 'ALREADY', version} (it is deleted)
local topic = redis.call('HMGET', KEYS[2], 'version', 'record')
local version = topic[1] or redis.call('HGET', KEYS[1], 'last-version') or '0'
if version ~= ARGV[4] then
  return {seq, 'CONFLICT', version, topic[2] or ''}
end
local next_version = text(tonumber(version) + 1)
if ARGV[5] == '' then
  if not topic[1] then
    return {seq, 'ALREADY', version}
  end
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
  redis.call('HSET', KEYS[1], 'last-version', next_version)
  return {changed(), 'OK', next_version}
end
if ARGV[7] == '1' or ARGV[8] == '1' then
  let_through()
end
redis.call('HSET', KEYS[2], 'version', next_version, 'record', ARGV[5])
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[2], 'incarnation', ARGV[6])
end
if ARGV[7] == '1' then
  redis.call('HSET', KEYS[2], 'deleting', '1')
  redis.call('DEL', KEYS[3])
end
redis.call('XADD', KEYS[4], 'MAXLEN', '~', '64', '*', 'type', 'topology', 'version', next_version)
return {changed(), 'OK', next_version}
