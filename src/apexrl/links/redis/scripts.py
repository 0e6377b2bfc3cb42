"""Lua scripts for atomic changes on the server: the learner's lease and the leases of actor slots.

Only the server's clock decides what has expired. Keys have no TTL while their run continues, because a server that is
short of memory may evict such keys; the time of expiry is a value. If it is farther away than the length of the lease,
the clock was set back, and the lease counts from now. A key of the wrong type was not written by apexrl; it is deleted
and created again.

A full server refuses writes (noeviction). Renewing and ending must work nevertheless: a script that has made one write
may go on writing. Messages can wait.

``taken`` is when the newest learner took its lease. A server restarted from an old snapshot may have state of an
earlier run of the name or of an earlier learner; a process that knows a later ``taken`` corrects it.

Scripts are sent in full (EVAL): they are short, and a restarted server does not know scripts by digest.
"""

from __future__ import annotations

from typing import Final

PRELUDE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)  -- milliseconds
local function text(number) return string.format('%.0f', number) end  -- tostring says 1.8e+12
local function whole(value)  -- 0 for what is no whole number
  if value and #value <= 15 and string.find(value, '^%d+$') then return tonumber(value) end
  return 0
end
local function identity(value)  -- nil for what cannot be a run's id or a learner's token
  if value and #value >= 8 and #value <= 64 and string.find(value, '^[%w%-]+$') then return value end
end
local function heal(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then redis.call('DEL', key) end
end
local function even_when_full() redis.pcall('HDEL', KEYS[1], '') end  -- the first write; changes nothing
local function held(key)  -- whether a learner holds its lease, and for how long yet
  local holder = redis.call('HMGET', key, 'token', 'until', 'ttl')
  local till, longest = whole(holder[2]), now + whole(holder[3])
  if not identity(holder[1]) or till <= now then return false end
  if till > longest then  -- the clock was set back
    till = longest
    redis.call('HSET', key, 'until', text(till))
  end
  return till > now, till - now
end
"""

TAKE: Final = (
    PRELUDE
    + """
-- KEYS state, learner, record, all others of the run
-- ARGV run_id, token, host, pid, ttl, record, 1 if another run may be cleared away,
--      1 if the run must not have ended
heal(KEYS[1], 'hash') heal(KEYS[2], 'hash') even_when_full()
local living, left = held(KEYS[2])
if living then
  local holder = redis.call('HMGET', KEYS[2], 'host', 'pid', 'seen')
  return {'held', holder[1] or '', holder[2] or '', text(now - whole(holder[3])), text(left)}
end
local run = identity(redis.call('HGET', KEYS[1], 'run_id'))
local resumed = run == ARGV[1]
if run and not resumed and ARGV[7] ~= '1' then
  local holder = redis.call('HMGET', KEYS[2], 'host', 'pid', 'seen')
  local phase = redis.call('HGET', KEYS[1], 'phase')
  return {'another', holder[1] or '', holder[2] or '', text(now - whole(holder[3])), phase or ''}
end
if ARGV[8] == '1' then
  local over = redis.call('HMGET', KEYS[1], 'phase', 'stop')
  if over[1] == 'finished' or over[2] then return {'over'} end
end
local taken = text(math.max(now, whole(redis.call('HGET', KEYS[1], 'taken')) + 1))
for index, key in ipairs(KEYS) do
  if resumed and index ~= 2 then redis.call('PERSIST', key) else redis.call('UNLINK', key) end
end
redis.call('HSET', KEYS[1], 'run_id', ARGV[1], 'phase', 'running', 'taken', taken)
redis.call('HDEL', KEYS[1], 'stop', 'summary')
redis.call('HSET', KEYS[2], 'token', ARGV[2], 'host', ARGV[3], 'pid', ARGV[4],
           'seen', text(now), 'until', text(now + ARGV[5]), 'ttl', ARGV[5])
redis.call('SET', KEYS[3], ARGV[6])
return {'taken', resumed and 1 or 0, taken}
"""
)

RENEW_LEARNER: Final = (
    PRELUDE
    + """
-- KEYS state, learner, record, generations, all others of the run
-- ARGV run_id, token, host, pid, ttl, status, version, SHA-1 of the record, taken, trouble with the weights,
--      environment steps of the run, settings of environments that have changed
heal(KEYS[1], 'hash') heal(KEYS[2], 'hash') heal(KEYS[3], 'string') heal(KEYS[4], 'hash') even_when_full()
local run = identity(redis.call('HGET', KEYS[1], 'run_id'))
local taken = whole(redis.call('HGET', KEYS[1], 'taken'))
if taken > tonumber(ARGV[9]) then
  local holder = redis.call('HMGET', KEYS[2], 'host', 'pid', 'seen')
  return {'replaced', holder[1] or '', holder[2] or '', text(now - whole(holder[3]))}
end
if run and run ~= ARGV[1] and held(KEYS[2]) and redis.call('HGET', KEYS[2], 'token') ~= ARGV[2] then
  local holder = redis.call('HMGET', KEYS[2], 'host', 'pid', 'seen')  -- its learner may live: nothing of it is touched
  return {'taken', holder[1] or '', holder[2] or '', text(now - whole(holder[3]))}
end
if run ~= ARGV[1] or taken < tonumber(ARGV[9]) then  -- an empty server, or an old snapshot
  if run and run ~= ARGV[1] then redis.call('UNLINK', unpack(KEYS)) end
  redis.call('HSET', KEYS[1], 'run_id', ARGV[1], 'phase', 'running', 'taken', ARGV[9])
  redis.call('HDEL', KEYS[1], 'stop', 'summary')
end
redis.call('HSET', KEYS[2], 'token', ARGV[2], 'host', ARGV[3], 'pid', ARGV[4],
           'seen', text(now), 'until', text(now + ARGV[5]), 'ttl', ARGV[5], 'status', ARGV[6], 'version', ARGV[7],
           'trouble', ARGV[10], 'env_steps', ARGV[11], 'env_change', ARGV[12])
local record = redis.call('GET', KEYS[3])
local intact = record and redis.sha1hex(record) == ARGV[8]
return {'held', redis.call('HEXISTS', KEYS[1], 'stop'), intact and 1 or 0, redis.call('HGETALL', KEYS[4])}
"""
)

RESTORE: Final = (
    PRELUDE
    + """
-- KEYS learner, record, generations. ARGV token, record, then fields of generations with the last one known of each
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
heal(KEYS[3], 'hash') even_when_full()
redis.call('SET', KEYS[2], ARGV[2])
for i = 3, #ARGV, 2 do
  if whole(redis.call('HGET', KEYS[3], ARGV[i])) < whole(ARGV[i + 1]) then
    redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
  end
end
return 1
"""
)

END: Final = (
    PRELUDE
    + """
-- KEYS learner, state. ARGV taken, summary ('' when the run is not over). May be repeated
heal(KEYS[1], 'hash') heal(KEYS[2], 'hash') even_when_full()
if redis.call('HGET', KEYS[2], 'taken') ~= ARGV[1] then return 0 end
if ARGV[2] ~= '' then redis.call('HSET', KEYS[2], 'phase', 'finished', 'summary', ARGV[2]) end
redis.call('HDEL', KEYS[1], 'token', 'until')
return 1
"""
)

CLEAR: Final = (
    PRELUDE
    + """
-- KEYS state, learner, record, generations, all others of the run. ARGV taken, seconds that the first four stay.
-- 0: another learner has gone on with it, or another run has the name
if redis.call('HGET', KEYS[1], 'taken') ~= ARGV[1] or redis.call('HEXISTS', KEYS[2], 'token') == 1 then return 0 end
for index, key in ipairs(KEYS) do
  if index <= 4 then redis.call('EXPIRE', key, ARGV[2]) else redis.call('UNLINK', key) end
end
return 1
"""
)

STOP: Final = (
    PRELUDE
    + """
-- KEYS state, learner, members. Answers whether there is such a run, and who is there to hear it
heal(KEYS[1], 'hash') heal(KEYS[2], 'hash') heal(KEYS[3], 'hash') even_when_full()
if redis.call('HEXISTS', KEYS[1], 'run_id') == 0 then return {'none'} end
if redis.call('HGET', KEYS[1], 'phase') == 'finished' then return {'finished'} end
local alive = held(KEYS[2]) and 1 or 0
for _, value in ipairs(redis.call('HVALS', KEYS[3])) do
  local seen, till = string.match(value, '^(%d+) (%d+) ')
  if whole(seen) <= now and whole(till) > now then alive = alive + 1 end
end
redis.call('HSET', KEYS[1], 'stop', text(now))
if alive == 0 then redis.call('HSET', KEYS[1], 'phase', 'finished') return {'deserted'} end
return {'asked'}
"""
)

PRUNE: Final = (
    PRELUDE
    + """
-- KEYS members. ARGV milliseconds that a silent member stays in the list
heal(KEYS[1], 'hash')
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local age = now - whole(string.match(all[i + 1], '^(%d+) '))  -- negative: the clock was set back
  if math.abs(age) > tonumber(ARGV[1]) then redis.call('HDEL', KEYS[1], all[i]) end
end
return 0
"""
)

_LEASES: Final = (
    PRELUDE
    + """
-- KEYS slots, generations, members, ... What the learner writes is not among them: a server lets nobody EVAL with KEYS
-- that it may only read (docs/how-to/redis-users.md).
local function sibling(name) return (string.gsub(KEYS[1], 'slots$', name)) end
local state, learner = sibling('state'), sibling('learner')
local function of_learner(key, field)
  return redis.call('TYPE', key).ok == 'hash' and redis.call('HGET', key, field)
end
local function lease(index, member, generation, ttl)
  redis.call('HSET', KEYS[1], index, member .. ' ' .. generation .. ' ' .. text(now + ttl) .. ' ' .. ttl)
end
local function lessee_by(index, value)  -- of a lease that has not expired
  local member, generation, till, ttl = string.match(value or '', '^(%S+) (%d+) (%d+) (%d+)$')
  if not member or whole(till) <= now then return end
  if whole(till) > now + whole(ttl) then lease(index, member, generation, text(whole(ttl))) end
  return member
end
local function lessee(index) return lessee_by(index, redis.call('HGET', KEYS[1], index)) end
local function free_slots(slots, wanted)  -- the lowest that nobody leases; a call for each would take the server long
  local free, first = {}, 0
  while first < slots and #free < wanted do
    local some = {}
    for index = first, math.min(first + 255, slots - 1) do some[#some + 1] = index end
    for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(some))) do
      local till, ttl = string.match(value or '', '^%S+ %d+ (%d+) (%d+)$')
      local left = till and #till <= 15 and #ttl <= 15 and till - now  -- most are leased: those are seen at once
      if not (left and left > 0 and left <= tonumber(ttl)) and not lessee_by(some[i], value) then
        free[#free + 1] = some[i]
        if #free == wanted then break end
      end
    end
    first = first + 256
  end
  return free
end
local function learner_alive()  -- as `held`; seen in the future: the clock was set back, and it says so again at once
  local seen, till = whole(of_learner(learner, 'seen')), whole(of_learner(learner, 'until'))
  return identity(of_learner(learner, 'token')) and seen <= now + 1000 and till > now
end
local function following(field)
  local generation = text(whole(redis.call('HGET', KEYS[2], field)) + 1)
  redis.call('HSET', KEYS[2], field, generation)
  return generation
end
local function at_least(field, generation)
  if whole(redis.call('HGET', KEYS[2], field)) < whole(generation) then
    redis.call('HSET', KEYS[2], field, generation)
  end
end
heal(KEYS[1], 'hash') heal(KEYS[2], 'hash') heal(KEYS[3], 'hash')
local run = identity(of_learner(state, 'run_id'))
local taken = whole(of_learner(state, 'taken'))
"""
)

JOIN: Final = (
    _LEASES
    + """
-- ARGV run_id, member, ttl, number of slots, slots wanted, host ('' of one that takes no orders)
if run and run ~= ARGV[1] then return {'replaced'} end
if of_learner(state, 'phase') == 'finished' then return {'finished'} end
if of_learner(state, 'stop') then return {'stopping'} end
if of_learner(state, 'drain:' .. ARGV[6]) then return {'drained'} end
even_when_full()
local free = free_slots(tonumber(ARGV[4]), tonumber(ARGV[5]))
if #free < tonumber(ARGV[5]) then return {'full', #free} end
local reply = {'joined', following('members'), text(taken)}
for i = 1, ARGV[5] do
  local generation = following('slot:' .. free[i])
  lease(free[i], ARGV[2], generation, ARGV[3])
  reply[#reply + 1] = free[i]
  reply[#reply + 1] = generation
end
return reply
"""
)

RENEW_MEMBER: Final = (
    _LEASES
    + """
-- KEYS ..., messages
-- ARGV run_id, member, ttl, number of slots, slots wanted, generation, heartbeat, most messages that may wait,
--      taken, slots held, host, then index and generation of each, then kind and values of each message
if run and run ~= ARGV[1] and taken > tonumber(ARGV[9]) then return {'replaced'} end
local current = run == ARGV[1] and taken >= tonumber(ARGV[9])
heal(KEYS[4], 'stream')
local first_message = 12 + 2 * ARGV[10]
local told = 0
for i = first_message, #ARGV, 2 do
  if redis.call('XLEN', KEYS[4]) >= tonumber(ARGV[8]) then break end
  local added = redis.pcall('XADD', KEYS[4], '*', 'member', ARGV[2], 'kind', ARGV[i], 'values', ARGV[i + 1])
  if type(added) == 'table' and added.err then break end  -- full
  told = told + 1
end
even_when_full()
local alive = current and learner_alive()
local stop = current and of_learner(state, 'stop')
local finished = current and of_learner(state, 'phase') == 'finished'
local drained = current and of_learner(state, 'drain:' .. ARGV[11])
local actors = ARGV[11] ~= '' and (of_learner(state, 'actors:' .. ARGV[11]) or of_learner(state, 'actors:*'))
local slots, missing = {}, tonumber(ARGV[5])
for i = 12, first_message - 1, 2 do
  local index, generation = tonumber(ARGV[i]), ARGV[i + 1]
  local who = lessee(index)
  if not who or who == ARGV[2] then
    local last = whole(redis.call('HGET', KEYS[2], 'slot:' .. index))
    if last > whole(generation) then generation = following('slot:' .. index) end  -- another had it meanwhile
    at_least('slot:' .. index, generation)  -- a server that came back empty
    lease(index, ARGV[2], generation, ARGV[3])
    slots[#slots + 1] = index
    slots[#slots + 1] = generation
    missing = missing - 1
  end
end
for _, index in ipairs(free_slots(tonumber(ARGV[4]), missing)) do
  local generation = following('slot:' .. index)
  lease(index, ARGV[2], generation, ARGV[3])
  slots[#slots + 1] = index
  slots[#slots + 1] = generation
end
at_least('members', ARGV[6])
redis.call('HSET', KEYS[3], ARGV[2], text(now) .. ' ' .. text(now + ARGV[3]) .. ' ' .. ARGV[6] .. ' ' .. ARGV[7])
return {'held', stop and 1 or 0, finished and 1 or 0, alive and 1 or 0,
        text(whole(of_learner(learner, 'version'))), of_learner(learner, 'trouble') or '',
        redis.call('HLEN', KEYS[3]), told, text(current and taken or 0), slots, drained and 1 or 0, actors or '',
        text(whole(of_learner(learner, 'env_steps'))), of_learner(learner, 'env_change') or ''}
"""
)

LEAVE: Final = (
    _LEASES
    + """
-- ARGV run_id, member, generation, heartbeat, then the slots held
if run ~= ARGV[1] then return 0 end
even_when_full()
for i = 5, #ARGV do
  if lessee(ARGV[i]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
redis.call('HSET', KEYS[3], ARGV[2], text(now) .. ' 0 ' .. ARGV[3] .. ' ' .. ARGV[4])
return 1
"""
)

POP: Final = (
    PRELUDE
    + """
-- KEYS messages. ARGV the most to take out
heal(KEYS[1], 'stream')
local entries, ids = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', ARGV[1]), {}
for i, entry in ipairs(entries) do ids[i] = entry[1] end
if #ids > 0 then redis.call('XDEL', KEYS[1], unpack(ids)) end
return entries
"""
)
