-- Write and remove records of a subscription's acknowledgements in one step, as its owner. The steps
-- of an owner are numbered: one that was taken already is not taken again, and none is left out.
-- KEYS[2]  {seg:<id>}:broker-acks-owner:<subscription>  hash {owner, step, cursor}
-- KEYS[3]  {seg:<id>}:broker-acks:<subscription>        hash of records
-- ARGV[4]  owner, ARGV[5] number of the step, ARGV[6] how many records to write
-- ARGV[7...]  of each its field and itself; then the fields to remove
-- -> {seq, 'OK'} | {seq, 'ALREADY'} | {seq, 'FENCED'} (another broker has opened it)
--    {seq, 'GAP', number of the last step} | {seq, 'RETIRED'} (the segment was deleted)
--    {seq, 'FULL'}  a full server takes no records: only the number is taken, so that no late copy of
--                   the step writes them after all
if retired then
  return {seq, 'RETIRED'}
end
local known = redis.call('HMGET', KEYS[2], 'owner', 'step')
if known[1] ~= ARGV[4] then
  return {seq, 'FENCED'}
end
if known[2] == ARGV[5] then
  return {seq, 'ALREADY'}
end
if tonumber(known[2]) + 1 ~= tonumber(ARGV[5]) then
  return {seq, 'GAP', known[2]}
end
local first_removed = 7 + 2 * tonumber(ARGV[6])
-- Removing frees memory, and a decision, whose field has one colon, lets others do so.
local ends = first_removed <= #ARGV
for i = 7, first_removed - 1, 2 do
  ends = ends or not string.find(ARGV[i], ':.*:')
end
local full = false
if not ends and first_removed > 7 then
  local written = redis.pcall('HSET', KEYS[3], ARGV[7], ARGV[8])
  if type(written) == 'table' and written.err then
    full = string.find(written.err, 'OOM', 1, true)
    if not full then
      return redis.error_reply(written.err)
    end
  end
end
if ends or full then
  let_through()
end
if full then
  redis.call('HSET', KEYS[2], 'step', ARGV[5])
  return {changed(), 'FULL'}
end
for i = 7, first_removed - 1, 2 do
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
end
for i = first_removed, #ARGV do
  redis.call('HDEL', KEYS[3], ARGV[i])
end
redis.call('HSET', KEYS[2], 'step', ARGV[5])
return {changed(), 'OK'}
