-- List the decided transactions whose headers may go: past the retention, and everything older in
-- the TC is decided. What is younger than the retention is not read, however much it is; what an
-- older open one retains is paged: index entries, no headers.
-- KEYS[2]  {tc<N>}:idx:txn-by-final-state  zset '<state>|<TxnId>' by finalized_ms
-- ARGV[4]  highest finalized_ms, ARGV[5] counter F below which everything is decided
-- ARGV[6]  how many of the index to leave out, ARGV[7] how many to read, at most
-- ARGV[8]  how many to return at most
-- -> {seq, 'OK', how many were read, '1' if there are more | '', how many of them wait for an
--     older open one, TxnId...}
local page = tonumber(ARGV[7])
local candidates = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[4], 'LIMIT', ARGV[6], page + 1)
local below = tonumber(ARGV[5])
local most = tonumber(ARGV[8])
local seen = 0
local waiting = 0
local due = {}
for i = 1, math.min(#candidates, page) do
  if #due == most then
    break
  end
  seen = i
  local txn = string.sub(candidates[i], string.find(candidates[i], '|', 1, true) + 1)
  if tonumber(string.sub(txn, string.find(txn, ':', 1, true) + 1)) < below then
    due[#due + 1] = txn
  else
    waiting = waiting + 1
  end
end
local more = ''
if #candidates > seen then
  more = '1'
end
return {seq, 'OK', seen, more, waiting, unpack(due)}
