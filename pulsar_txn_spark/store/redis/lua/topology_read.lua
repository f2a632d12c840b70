-- Read a topic's topology.
-- KEYS[2]  {topic:<name>}:topology  hash {version, record}
-- -> {seq, 'OK', version, record} | {seq, 'ABSENT', version} (see topology_cas.lua)
local topic = redis.call('HMGET', KEYS[2], 'version', 'record')
if not topic[1] then
  return {seq, 'ABSENT', redis.call('HGET', KEYS[1], 'last-version') or '0'}
end
return {seq, 'OK', topic[1], topic[2]}
