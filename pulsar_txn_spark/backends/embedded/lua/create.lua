-- Creates a segment's log. Idempotent.
--
-- KEYS[2]  {seg:<id>}:birth, the record of the segment's metadata; its field `retired` says that the
--          segment was deleted: a log is never made anew under a used id (INV-12)
-- KEYS[1]  {seg:<id>}:log-state, a hash:
--            next              number of the next entry = how many were ever appended
--            messages, bytes   totals of all that was ever appended
--            sealed            1 = takes no more entries
--            trimmed           number of the last entry that is gone, -1 = none is
--            trimmed_messages, trimmed_bytes   totals up to and including that entry
--
-- Returns 1 = created, 0 = it was there, -1 = the segment was deleted.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
if redis.call('HEXISTS', KEYS[2], 'retired') == 1 then
  return -1
end
redis.call('HSET', KEYS[1], 'next', '0', 'messages', '0', 'bytes', '0', 'sealed', '0',
  'trimmed', '-1', 'trimmed_messages', '0', 'trimmed_bytes', '0')
return 1
