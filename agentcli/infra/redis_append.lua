-- Keys: events, state, the set of running streams, the last id. Arguments: stream, status, note, if_note, after,
-- milliseconds to keep it, events. A status or note of "-" is not changed, others begin with "=". The last id never
-- expires, so that no id is used again. Earlier versions, which may still run on another machine, store it only in the
-- state, so the greater one is used.
local note = redis.call('HGET', KEYS[2], 'note') or ''
if ARGV[4] ~= '-' and string.sub(ARGV[4], 2) ~= note then return -1 end
local last = tonumber(redis.call('GET', KEYS[4]) or '0')
last = math.max(last, tonumber(redis.call('HGET', KEYS[2], 'last_id') or '0'))
local next = math.max(last, tonumber(ARGV[5]))
for n = 7, #ARGV do
    next = next + 1
    redis.call('XADD', KEYS[1], string.format('%d-0', next), 'data', ARGV[n])
    last = next
end
local status = redis.call('HGET', KEYS[2], 'status') or 'running'
if ARGV[2] ~= '-' then status = string.sub(ARGV[2], 2) end
if ARGV[3] ~= '-' then note = string.sub(ARGV[3], 2) end
redis.call('HSET', KEYS[2], 'status', status, 'note', note, 'last_id', string.format('%d', last))
redis.call('SET', KEYS[4], string.format('%d', last))
redis.call(status == 'running' and 'SADD' or 'SREM', KEYS[3], ARGV[1])
for n = 1, 2 do
    if status == 'running' then redis.call('PERSIST', KEYS[n]) else redis.call('PEXPIRE', KEYS[n], ARGV[6]) end
end
redis.call('PUBLISH', 'agentcli:news', ARGV[1])
return last
