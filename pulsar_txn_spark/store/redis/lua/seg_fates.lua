-- Tell how some writers of a segment stand, and nothing else: it costs what is asked, however many
-- dropped writers there are. For a broker that keeps consumers behind their entries.
-- KEYS[2]  {seg:<id>}:pins, KEYS[3] {seg:<id>}:dropped, KEYS[4] {seg:<id>}:floor
-- KEYS[5]  {seg:<id>}:dropped-groups, KEYS[6] {seg:<id>}:dropped-floors (see seg_floor.lua)
-- ARGV[4]  prefix of groups
-- ARGV[5...] for each writer: its name, TC, counter, and where it was pinned ('' = not known: then
--          only whether it is pinned now is told, and else 'UNPINNED')
-- -> {seq, 'OK', for each writer 'PINNED', bound | 'DROPPED', bound from which on | 'WON', ''
--     | 'UNPINNED', ''} | {seq, 'DELETED'}
-- A pin is removed in the step that drops what its writer lost (INV-3). Who was pinned, and is now
-- neither pinned nor dropped, has won.
if retired then
  return {seq, 'DELETED'}
end
local function dropped_from(writer, tc, counter, pinned_at)
  local record = redis.call('HGET', KEYS[3], writer)
  if not record then
    -- Its group is the first one behind its pin.
    local group = redis.call('ZRANGEBYLEX', KEYS[5], '(' .. pinned_at, '+', 'LIMIT', 0, 1)[1]
    record = group and redis.call('HGET', ARGV[4] .. group, writer)
  end
  if record then
    return string.sub(record, 1, string.find(record, '|', 1, true) - 1)
  end
  -- Behind a group nothing was committed by what is below its counters, and below the floor nothing
  -- at all is left.
  local before = redis.call('ZREVRANGEBYLEX', KEYS[5], '[' .. pinned_at, '-', 'LIMIT', 0, 1)[1]
  local counters = before and redis.call('HGET', KEYS[6], before) or ''
  local below = redis.call('HGET', KEYS[4], tc) or '0'
  for of, number in string.gmatch(counters, '(%d+):(%d+)') do
    if of == tc and tonumber(number) > tonumber(below) then
      below = number
    end
  end
  if tonumber(counter) < tonumber(below) then
    return pinned_at
  end
  return nil
end
local fates = {}
for i = 5, #ARGV, 4 do
  local pin = redis.call('HGET', KEYS[2], ARGV[i])
  local fate, bound = 'UNPINNED', ''
  if pin then
    fate, bound = 'PINNED', string.sub(pin, 1, string.find(pin, '|', 1, true) - 1)
  elseif ARGV[i + 3] ~= '' then
    local from = dropped_from(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
    fate, bound = from and 'DROPPED' or 'WON', from or ''
  end
  fates[#fates + 1] = fate
  fates[#fates + 1] = bound
end
return {seq, 'OK', unpack(fates)}
