-- Read a part of what a broker keeps of a subscription's acknowledgements, as its owner. While nobody
-- opens it anew, nothing changes between the parts.
-- KEYS[2]  {seg:<id>}:broker-acks-owner:<subscription>  hash {owner, step, cursor}
-- KEYS[3]  {seg:<id>}:broker-acks:<subscription>        hash of records
-- ARGV[4]  owner, ARGV[5] where to go on ('0' = at the beginning), ARGV[6] about how many at once
-- -> {seq, 'OK', where to go on ('0' = that was all), {field, record...}} | {seq, 'FENCED'}
if redis.call('HGET', KEYS[2], 'owner') ~= ARGV[4] then
  return {seq, 'FENCED'}
end
local part = redis.call('HSCAN', KEYS[3], ARGV[5], 'COUNT', ARGV[6])
return {seq, 'OK', part[1], part[2]}
