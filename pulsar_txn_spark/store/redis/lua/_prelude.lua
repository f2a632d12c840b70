-- Put in front of every script of one tag.
-- KEYS[1]  tag record: hash {uuid, epoch, seq, retired, registered, server, history,
--          histories}
-- ARGV[1]  uuid of the store that the caller knows
-- ARGV[2]  its epoch
-- ARGV[3]  the states of this tag that the caller has seen or heard of: '<seq> <history>' of
--          each, '-' for a history that is not known; in front of them '+' once {meta} says 'born'
-- Every result starts with {'<seq> <history>', code}. Before anything is written:
--   {-1,  'NO_TAG_RECORD'}            the tag is not there (never was, or was lost)
--   {seq, 'OTHER_STORE', uuid, epoch} the tag belongs to another store
--   {seq, 'BEHIND'}                   the tag is older than what the caller has seen
--   {seq, 'OVERTAKEN', seq seen, its history, last seq of it here | ''}
--                                     what the caller has seen is not in this tag's past (INV-14)
--   {seq, 'UNREGISTERED'}             {meta} may not know that the tag was initialized: it could be lost
--                                     and initialized again. Register it, and ask again with '+'
-- A server from which a slot of a cluster moves refuses each command on a key that it does not have. It does
-- so in the middle of a script, too, and keeps what the script has written. A set that the script has just
-- emptied is such a key. So every script first asks for a key that is never there. Where its slot moves,
-- it is refused before its first write, and is sent again (TRYAGAIN). The server to which the slot
-- moves takes one key that has not arrived for absent, if it was told ASKING. Of several keys it wants all.
-- So the tag record is asked for as well. Where one server has all tags, nothing is asked (_once.lua).
local moving = redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':none')
if type(moving) == 'table' then
  -- Newer ones than 7.0 say the second where some of the keys are here.
  if string.find(moving.err, 'non local key', 1, true)
      or string.find(moving.err, 'rehashing of the slot', 1, true) then
    return redis.error_reply('TRYAGAIN the slot of this tag is on its way to another server')
  end
  return moving
end
-- This primary may have become a replica while the caller's connection was open: it would still answer
-- reads, with old data (INV-4, INV-11). Where the user may not call INFO, a write that changes nothing
-- asks: XX adds nothing to a key that is never there. For everybody else it would be too dear: 6.2 syncs
-- its log for it. A full server refuses this write and takes it for none, so that it refuses what begins
-- something, too (see let_through).
local replication = redis.pcall('INFO', 'replication')
local refused
if type(replication) == 'string' then
  refused = string.find(replication, 'role:slave', 1, true)
else
  local write = redis.pcall('ZADD', KEYS[1] .. ':none', 'XX', '0', '')
  refused = type(write) == 'table' and string.find(write.err, 'READONLY', 1, true)
end
if refused then
  return redis.error_reply('READONLY this server is a replica now: what it has may be old')
end
local tag = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'seq', 'retired', 'registered', 'server',
  'history')
if not tag[1] then
  return {-1, 'NO_TAG_RECORD'}
end
local seq = tag[3] .. ' ' .. (tag[7] or '')
if tag[1] ~= ARGV[1] or tag[2] ~= ARGV[2] then
  return {seq, 'OTHER_STORE', tag[1], tag[2]}
end
for number, history in string.gmatch(ARGV[3], '(%d+) (%S+)') do
  if tonumber(number) > tonumber(tag[3]) then
    return {seq, 'BEHIND'}
  end
  if history ~= '-' and history ~= tag[7] then
    -- '*' stands for the oldest ones, whose names are not kept: a number among theirs may pass.
    local ended = redis.call('HGET', KEYS[1], 'histories') or ''
    local at = string.find(ended, history .. ':', 1, true)
    local last = at and string.match(ended, '%d+', at + #history + 1)
      or string.match(ended, '^%*:(%d+)')
    if not last or tonumber(number) > tonumber(last) then
      return {seq, 'OVERTAKEN', number, history, last or ''}
    end
  end
end
if not tag[5] then
  if string.sub(ARGV[3], 1, 1) ~= '+' then
    return {seq, 'UNREGISTERED'}
  end
  -- A full server notes it another time: until then {meta} is asked again.
  redis.pcall('HSET', KEYS[1], 'registered', '1')
end
-- Of a segment that was deleted (see seg_retire.lua): nothing is registered in its tag any more. It
-- outlives everything else in there, so that no late request brings anything back (INV-5, INV-6).
local retired = tag[4]
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function text(number)
  return string.format('%.0f', number)
end
-- Let a history of the tag begin if this server is not the one that changed it last. A server can
-- have lost acknowledged changes only if it was started since, or made a primary: with either it
-- takes a new replication id. So the changes of one history have all been made one upon the other.
-- (Where the user may not call INFO, no history begins, and losses are told by the number alone.)
local function continue_history(number)
  local server = type(replication) == 'string'
    and string.match(replication, 'master_replid:(%x+)')
  if not server or server == tag[6] then
    return
  end
  local time = redis.call('TIME')
  local name = server .. ' ' .. number .. ' ' .. time[1] .. ' ' .. time[2]
  local fresh = string.sub(redis.sha1hex(name), 1, 16)
  local ended = redis.call('HGET', KEYS[1], 'histories') or ''
  if tag[7] then
    ended = ended .. tag[7] .. ':' .. tag[3] .. ' '
  end
  local _, kept = string.gsub(ended, '%x+:%d+ ', '')
  if kept > 64 then
    ended = string.gsub(ended, '^%*:%d+ ', '')
    ended = '*' .. string.sub(ended, string.find(ended, ':', 1, true), -1)
  end
  redis.call('HSET', KEYS[1], 'server', server, 'history', fresh, 'histories', ended)
  tag[6], tag[7] = server, fresh
end
-- Let a full server take a step (maxmemory, noeviction). Call it behind all checks, before the first write
-- of a step that frees memory, or ends or goes on with what is there. Never of one that begins anything.
-- Redis refuses only the first write of a script, and only one that may need memory. So this comes
-- first. It changes nothing, and is neither replicated nor written to the append-only file.
local function let_through()
  redis.call('HDEL', KEYS[1], '')
end
-- Call once, as the last write of a script that changed anything.
local function changed()
  local number = text(redis.call('HINCRBY', KEYS[1], 'seq', 1))
  continue_history(number)
  tag[3] = number
  return number .. ' ' .. (tag[7] or '')
end
