-- Replace a topic's topology if its version is the expected one.
-- KEYS[2]  {topic:<name>}:topology
-- KEYS[3]  {topic:<name>}:properties, to delete with it
-- KEYS[4]  {topic:<name>}:events (stream)
-- ARGV[4]  expected version ('0' = absent), ARGV[5] new record ('' = delete)
-- -> {seq, 'OK', version} | {seq, 'CONFLICT', version, record}
local found = redis.call('HMGET', KEYS[2], 'version', 'record')
local version = found[1] or '0'
if version ~= ARGV[4] then
  return {seq, 'CONFLICT', version, found[2] or ''}
end
if ARGV[5] == '' then
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
  return {changed(), 'OK', '0'}
end
local next_version = text(tonumber(version) + 1)
redis.call('HSET', KEYS[2], 'version', next_version, 'record', ARGV[5])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', '64', '*', 'type', 'topology', 'version', next_version)
return {changed(), 'OK', next_version}
