-- In front of the scripts of a merged one: each has the prelude of its own, and what those read is read
-- once. Nobody else changes it meanwhile, and what a prelude has changed it notes in its copy.
local records, replication = {}, nil
local server = redis
local redis = {
  call = function(...)
    local command, key = ...
    if command == 'HMGET' and string.sub(key, -7) == '}:birth' then
      records[key] = records[key] or server.call(...)
      return records[key]
    end
    return server.call(...)
  end,
  pcall = function(...)
    if ... == 'INFO' then
      replication = replication or server.pcall(...)
      return replication
    end
    if ... == 'EXISTS' then
      return 1 -- no cluster runs this, so that no slot moves
    end
    return server.pcall(...)
  end,
  sha1hex = redis.sha1hex,
  error_reply = redis.error_reply,
}
