-- Replace a topic's topology if its version is the expected one.
-- KEYS[2]  {topic:<name>}:topology
-- KEYS[3]  {topic:<name>}:properties, to delete with it
-- ARGV[4]  expected version ('0' = absent), ARGV[5] new record ('' = delete)
-- -> {seq, 'OK', version} | {seq, 'CONFLICT', version, record}
local found = redis.call('HMGET', KEYS[2], 'version', 'record')
local version = found[1] or '0'
if version ~= ARGV[4] then
  return {seq, 'CONFLICT', version, found[2] or ''}
end
if ARGV[5] == '' then
  redis.call('DEL', KEYS[2], KEYS[3])
  return {changed(), 'OK', '0'}
end
local next_version = text(tonumber(version) + 1)
redis.call('HSET', KEYS[2], 'version', next_version, 'record', ARGV[5])
return {changed(), 'OK', next_version}
