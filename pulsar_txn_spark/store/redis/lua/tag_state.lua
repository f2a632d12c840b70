-- Register that a tag is about to be initialized ('creating') or has been ('born'). A full server takes
-- what was begun, and the tags of coordinators: sweeps look at all of these, also at unused ones.
-- KEYS[2]  {meta}:tags  hash tag -> state
-- ARGV[4]  tag, ARGV[5] 'creating' | 'born' | '' (only read)
-- -> {seq, 'OK', state before}
local before = redis.call('HGET', KEYS[2], ARGV[4]) or ''
if ARGV[5] == '' or before == 'born' or before == ARGV[5] then
  return {seq, 'OK', before}
end
if before ~= '' or string.find(ARGV[4], '^tc%d+$') then
  let_through()
end
redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
return {changed(), 'OK', before}
