"""Lua scripts for turns at reading weights: few hosts read at once, which bounds the server's output buffers.

A turn is a lease by the server's clock: the turn of a dead reader ends within `TURN_SECONDS`. A turn is for one
version, which the publisher keeps as long as such a turn exists. Other readers wait in order of arrival, and are
notified on a channel of their own; a waiting reader that no longer listens is skipped.
"""

from __future__ import annotations

from typing import Final

from apexrl.links.redis.fences import FENCE
from apexrl.links.redis.scripts import PRELUDE

READERS: Final = 16
"""Hosts that read at once (benchmarks/hosts/thousand_hosts.py: with more, all together are no faster)."""
TURN_SECONDS: Final = 10
"""Length of a turn that its reader does not renew."""

_TURNS: Final = (
    PRELUDE
    + """
-- KEYS readers, waiting: not weights, which readers may not write. ARGV token, milliseconds of a turn, most readers,
-- prefix of their channels, ...
heal(KEYS[1], 'hash') heal(KEYS[2], 'zset') even_when_full()
local head = redis.call('GETRANGE', (string.gsub(KEYS[1], 'readers$', 'weights')), 0, 1023)
local fine, fields = pcall(cmsgpack.unpack, head)
local version = fine and type(fields) == 'table' and type(fields[2]) == 'number' and fields[2]
local function grant(token, which)
  redis.call('HSET', KEYS[1], token, text(which) .. ' ' .. text(now + ARGV[2]))
end
local function count()  -- turns that have not expired
  local turns, living = redis.call('HGETALL', KEYS[1]), 0
  for i = 1, #turns, 2 do
    local which, till = string.match(turns[i + 1], '^(%d+) (%d+)$')
    if whole(till) <= now then
      redis.call('HDEL', KEYS[1], turns[i])
    else
      living = living + 1
      if whole(till) > now + ARGV[2] then grant(turns[i], whole(which)) end  -- the clock was set back
    end
  end
  return living
end
local function hand_on()  -- free turns to those who wait; answers how many are taken
  local living = count()
  while version and living < tonumber(ARGV[3]) do
    local first = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    if not first then break end
    redis.call('ZREM', KEYS[2], first)
    if redis.call('PUBLISH', ARGV[4] .. first, '') > 0 then
      grant(first, version)
      living = living + 1
    end
  end
  return living
end
"""
)

ENTER: Final = (
    _TURNS
    + """
-- ARGV ..., version that the reader has. Answers the head, and: 'read' (it has a turn for that version), 'wait', or
-- 'none' (there is nothing newer)
if not version or version <= tonumber(ARGV[5]) then
  if redis.call('HDEL', KEYS[1], ARGV[1]) + redis.call('ZREM', KEYS[2], ARGV[1]) > 0 then hand_on() end
  return {head, 'none'}
end
local living = hand_on()
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and living >= tonumber(ARGV[3]) then
  redis.call('ZADD', KEYS[2], 'NX', text(now), ARGV[1])
  return {head, 'wait'}
end
redis.call('ZREM', KEYS[2], ARGV[1])
grant(ARGV[1], version)
return {head, 'read'}
"""
)

STAY: Final = (
    _TURNS
    + """
-- ARGV ..., version that is being read. Answers whether the turn is still there, and makes it last
local which = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+) ')
if which ~= ARGV[5] then return 0 end
grant(ARGV[1], whole(which))
return 1
"""
)

LEAVE_TURN: Final = (
    _TURNS
    + """
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
hand_on()
return 1
"""
)

BEING_READ: Final = (
    FENCE
    + """
-- KEYS state, readers. ARGV fence. Answers which versions turns are for; nil to an outdated learner's publisher
if outdated() then return false end
heal(KEYS[2], 'hash')
local turns, versions = redis.call('HVALS', KEYS[2]), {}
for _, turn in ipairs(turns) do
  local which, till = string.match(turn, '^(%d+) (%d+)$')
  if whole(till) > now then versions[#versions + 1] = which end
end
return versions
"""
)

DROP: Final = (
    FENCE
    + """
-- KEYS state, parts of weights that nobody needs. ARGV fence
if outdated() then return 0 end
for i = 2, #KEYS do redis.call('UNLINK', KEYS[i]) end
return 1
"""
)
