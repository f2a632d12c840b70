-- Put in front of every script of one tag.
-- KEYS[1]  birth record of the tag: hash {uuid, epoch, seq, retired}
-- ARGV[1]  uuid of the store that the caller knows
-- ARGV[2]  its epoch
-- ARGV[3]  the lowest seq of this tag that the caller may accept
-- Every result starts with {seq, code}. Before anything is written:
--   {-1,  'NO_BIRTH'}                 the tag is not there (never was, or was lost)
--   {seq, 'OTHER_STORE', uuid, epoch} the tag belongs to another store
--   {seq, 'BEHIND'}                   the tag is older than what the caller has seen
local birth = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'seq', 'retired')
if not birth[1] then
  return {-1, 'NO_BIRTH'}
end
local seq = tonumber(birth[3])
if birth[1] ~= ARGV[1] or birth[2] ~= ARGV[2] then
  return {seq, 'OTHER_STORE', birth[1], birth[2]}
end
if seq < tonumber(ARGV[3]) then
  return {seq, 'BEHIND'}
end
-- Of a segment that was deleted (see seg_retire.lua): nothing is registered in its tag any more. It
-- outlives everything else in there, so that no late request brings anything back (INV-5, INV-6).
local retired = birth[4]
-- Call once, as the last write of a script that changed anything.
local function changed()
  return redis.call('HINCRBY', KEYS[1], 'seq', 1)
end
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function text(number)
  return string.format('%.0f', number)
end
