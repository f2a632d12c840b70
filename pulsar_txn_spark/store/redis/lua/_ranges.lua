-- Put behind the prelude in the scripts that work on acknowledged ranges.
-- ack-ranges:<subscription>            zset of score 0, '<start> <end> <holder>': disjoint ranges
--                                      (start, end]; holder = TxnId, or '' = DELETED
-- pending-ranges:<subscription>:<txn>  zset of score 0, '<start> <end>': what the transaction has locked
-- A position is 'ledger:entry', or that and ':messages taken of the next entry'. The space sorts
-- before the colon, so members sort as positions do. (Lua compares two positions as Redis does in
-- any locale: the numbers are of equal width.)
local function parse(member)
  local first = string.find(member, ' ', 1, true)
  local second = string.find(member, ' ', first + 1, true)
  return string.sub(member, 1, first - 1), string.sub(member, first + 1, second - 1),
    string.sub(member, second + 1)
end
-- The parts of (start, last] that are neither deleted nor locked, in order; and what is in between:
-- {deleted = whether some of it is, mine = whether `me` has locked some, other = who else has}
local function gaps(ranges, start, last, me)
  local free, locks, at = {}, {}, start
  local members = redis.call('ZREVRANGEBYLEX', ranges, '(' .. start .. ' ', '-', 'LIMIT', '0', '1')
  for _, member in ipairs(redis.call('ZRANGEBYLEX', ranges, '[' .. start .. ' ',
      '(' .. last .. ' ')) do
    members[#members + 1] = member
  end
  for _, member in ipairs(members) do
    local from, to, holder = parse(member)
    if to > start then
      if holder == '' then
        locks.deleted = true
      elseif holder == me then
        locks.mine = true
      else
        locks.other = locks.other or holder
      end
      if from > at then
        free[#free + 1] = {at, from}
      end
      at = to
    end
  end
  if at < last then
    free[#free + 1] = {at, last}
  end
  return free, locks
end
-- Put a range where there is none; neighbours of one holder become one. What is put is written before
-- anything goes: a break where a key is missing, as while a slot moves, frees nothing.
local function put(ranges, own, start, last, holder)
  local before = redis.call('ZREVRANGEBYLEX', ranges, '(' .. start .. ' ', '-', 'LIMIT', '0', '1')[1]
  local behind = redis.call('ZRANGEBYLEX', ranges, '[' .. last .. ' ', '+', 'LIMIT', '0', '1')[1]
  local joined = {}
  if before then
    local from, to, who = parse(before)
    if to == start and who == holder then
      joined[#joined + 1] = from .. ' ' .. to
      start = from
    end
  end
  if behind then
    local from, to, who = parse(behind)
    if from == last and who == holder then
      joined[#joined + 1] = from .. ' ' .. to
      last = to
    end
  end
  redis.call('ZADD', ranges, 0, start .. ' ' .. last .. ' ' .. holder)
  if own then
    redis.call('ZADD', own, 0, start .. ' ' .. last)
  end
  for _, range in ipairs(joined) do
    redis.call('ZREM', ranges, range .. ' ' .. holder)
    if own then
      redis.call('ZREM', own, range)
    end
  end
end
-- Give the ranges of a decided transaction up, a bounded number at once; returns whether some are
-- left. The cursor moves over what then starts at it, and over nothing else (INV-9).
local function settle(ranges, own, cursor_key, txn, committed)
  local members = redis.call('ZRANGE', own, 0, 511)
  for _, member in ipairs(members) do
    if committed then
      local blank = string.find(member, ' ', 1, true)
      put(ranges, nil, string.sub(member, 1, blank - 1), string.sub(member, blank + 1), '')
    end
    redis.call('ZREM', ranges, member .. ' ' .. txn)
    redis.call('ZREM', own, member)
  end
  local moved = 0
  if committed and #members > 0 then
    local cursor = redis.call('HGET', cursor_key, 'position')
    local first = redis.call('ZRANGE', ranges, 0, 0)[1]
    if first then
      local from, to, holder = parse(first)
      if from == cursor and holder == '' then
        redis.call('ZREM', ranges, first)
        redis.call('HSET', cursor_key, 'position', to, 'txn', txn, 'sink', '', 'batch', '')
        -- Who acknowledges messages never reads them again: see cursor_claim.lua.
        redis.call('HDEL', cursor_key, 'released')
        moved = 1
      end
    end
  end
  return redis.call('EXISTS', own) == 1, moved
end
