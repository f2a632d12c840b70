-- Read, in one step, who still needs what of a segment.
-- KEYS[2]  {seg:<id>}:subscriptions
-- ARGV[4]  key prefix of cursors
-- -> {seq, 'OK', '1' if the segment was deleted or '', subscription, query, released, start, source...}
local result = {seq, 'OK', retired and '1' or ''}
for _, name in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  local cursor = redis.call('HMGET', ARGV[4] .. name, 'query', 'released', 'position',
    'planted', 'source')
  result[#result + 1] = name
  result[#result + 1] = cursor[1] or ''
  result[#result + 1] = cursor[2] or cursor[3]
  result[#result + 1] = cursor[4] or ''
  result[#result + 1] = cursor[5] or '0'
end
return result
