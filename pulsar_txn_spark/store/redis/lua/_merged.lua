-- The end of a merged script: it runs scripts of several tags as one step, where one server holds
-- all of those tags. In front of it stand `scripts` (by name, each with its prelude) and `identity`,
-- which is the prelude without its writes.
-- KEYS     those of each call, one call behind the other
-- ARGV[1]  number of calls; then of each: its script, how many keys and arguments it has, and its
--          arguments. Behind those that txn_read takes come the intents that the caller knows.
-- -> {'FAULT'}          a tag is not what the caller knows: nothing was written. The single steps
--                       tell which, and create what is new
--    {'OK', reply...}   the replies, up to the first behind which nothing may follow
local calls = {}
local key, arg = 0, 1
for i = 1, tonumber(ARGV[1]) do
  local call = {name = ARGV[arg + 1], keys = {}, args = {}}
  local own_keys, own_args = tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3])
  for k = 1, own_keys do
    call.keys[k] = KEYS[key + k]
  end
  for k = 1, own_args do
    call.args[k] = ARGV[arg + 3 + k]
  end
  key, arg = key + own_keys, arg + 3 + own_args
  calls[i] = call
end
-- Every tag before the first write: a part of a step must not take effect.
for _, call in ipairs(calls) do
  if identity(call.keys, call.args) then
    return {'FAULT'}
  end
end
-- A step may follow only where the one before it has taken effect. No pin is without its intent, and
-- nothing is materialized that was not decided here and now. Nothing begins by an old topology.
local passes = {
  topology_is = {OK = true},
  txn_create = {OPEN = true},
  txn_op = {OK = true},
  txn_intend = {OK = true},
  txn_end = {OK = true},
  seg_materialize = {OK = true, ALREADY = true, CLOSED = true},
  txn_forget_ops = {OK = true},
}
-- What is materialized must be all that the transaction has touched: the caller need not know of
-- the writers of tasks that failed.
local function knows_all(intents, args)
  local known = {}
  for i = 4, #args do
    known[args[i]] = true
  end
  for _, intent in ipairs(intents) do
    if not known[intent] then
      return false
    end
  end
  return #intents == #args - 3
end
-- A transaction that begins here has its number now. Those who are pinned are named after it, and a
-- sink's pointer names it. ARGV[10] is the key of that field, which goes behind the others.
local function give_number(txn)
  local tc, counter = string.match(txn, '^(%d+):(%d+)$')
  for _, call in ipairs(calls) do
    if call.name == 'seg_pin' then
      call.args[4] = string.gsub(call.args[4], '^ptxn%-#%-', 'ptxn-' .. tc .. '-' .. counter .. '-')
      call.args[5], call.args[7] = txn, counter
    elseif call.name == 'pointer_cas' then
      call.args[7] = call.args[7] .. call.args[10] .. string.char(#txn) .. txn
    end
  end
end
local result = {'OK'}
local header
for _, call in ipairs(calls) do
  local reply = scripts[call.name](call.keys, call.args)
  if reply.err then
    return reply
  end
  result[#result + 1] = reply
  local passing = passes[call.name]
  -- Of a transaction that was opened before, the state counts, not the code.
  if passing and not passing[reply[call.name == 'txn_create' and 4 or 2]] then
    break
  end
  -- What an earlier attempt at the batch has left open in other sinks is ended first.
  if call.name == 'sink_register' and #reply > 3 then
    break
  end
  if call.name == 'txn_create' then
    give_number(reply[3])
  end
  if call.name == 'txn_read' then
    header = reply
    if not knows_all(reply[5] or {}, call.args) then
      break
    end
  end
end
-- Of a header with which nothing is left to do, nobody reads anything.
if header and #result == #calls + 1 and result[#result][2] == 'OK' then
  header[4], header[5] = {}, {}
end
return result
