-- Tell whether a topic's topology is still the one that the caller has read. No version comes twice
-- (see topology_cas.lua).
-- KEYS[2]  {topic:<name>}:topology  hash {version, record}
-- ARGV[4]  version that was read
-- -> {seq, 'OK'} | {seq, 'CONFLICT'}
if redis.call('HGET', KEYS[2], 'version') ~= ARGV[4] then
  return {seq, 'CONFLICT'}
end
return {seq, 'OK'}
