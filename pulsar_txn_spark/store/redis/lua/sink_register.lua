-- Register which sink of a query begins which batch, before it begins it; tell which others have
-- begun that batch in another attempt.
-- KEYS[2]  {query:<id>}:sinks  hash sink -> '<batch id>|<attempt>' of its last batch
-- KEYS[3]  {query:<id>}:sinks-seen  hash: see sink_seen.lua
-- ARGV[4]  sink, ARGV[5] batch id, ARGV[6] attempt at the micro-batch, ARGV[7] how many are kept
-- -> {seq, 'OK' | 'ALREADY', '<seq> <history>' that was noted of the sink's tag | '',
--     sink, '<batch id>|<attempt>'...}
--    ALREADY as well if it has begun a later batch
local entry = ARGV[5] .. '|' .. ARGV[6]
local function batch_of(text)
  return tonumber(string.sub(text, 1, string.find(text, '|', 1, true) - 1))
end
local all = redis.call('HGETALL', KEYS[2])
local result = {seq, 'OK', redis.call('HGET', KEYS[3], ARGV[4]) or ''}
local before, oldest, lowest
for i = 1, #all, 2 do
  local batch = batch_of(all[i + 1])
  if all[i] == ARGV[4] then
    before = all[i + 1]
  elseif batch == tonumber(ARGV[5]) and all[i + 1] ~= entry then
    result[#result + 1] = all[i]
    result[#result + 1] = all[i + 1]
  end
  if not lowest or batch < lowest or (batch == lowest and all[i] < oldest) then
    oldest, lowest = all[i], batch
  end
end
if before and (before == entry or batch_of(before) > tonumber(ARGV[5])) then
  result[2] = 'ALREADY'
  return result
end
redis.call('HSET', KEYS[2], ARGV[4], entry)
-- The one that wrote nothing for longest goes. Not first: a full server refuses a script's first write only.
if not before and #all / 2 >= tonumber(ARGV[7]) then
  redis.call('HDEL', KEYS[2], oldest)
  redis.call('HDEL', KEYS[3], oldest)
end
result[1] = changed()
return result
