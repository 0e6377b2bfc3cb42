"""Lua scripts that only roles of the newest learner may run: each checks the fence and acts atomically.

A role may outlive its learner, if its host was suspended or its supervisor died. Its *fence* is the ``taken`` time of
its learner's lease. If the server has a newer one, the role must not change anything. 0: no fence.

The scripts also work on a full server, and free memory there.
"""

from __future__ import annotations

from typing import Final

from apexrl.errors import OwnershipError
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.scripts import PRELUDE
from apexrl.links.redis.server import Server

FENCE: Final = (
    PRELUDE
    + """
-- KEYS state, ... ARGV fence, ...
heal(KEYS[1], 'hash')
local fence = tonumber(ARGV[1])
local function maker(generation) return whole(string.match(generation, '^(%d+)-')) end
local function outdated(generation)
  if fence == 0 then return false end
  return math.max(maker(generation or ''), whole(redis.call('HGET', KEYS[1], 'taken'))) > fence
end
"""
)

ADOPT: Final = (
    FENCE
    + """
-- KEYS state, steps, its stream, a new one. ARGV fence, generation of its stream, generation of the new one, group
heal(KEYS[2], 'string')
local generation = redis.call('GETRANGE', KEYS[2], 0, 62)
if outdated(generation) then return 'outdated' end
if generation ~= ARGV[2] then return 'moved' end
even_when_full()
if generation ~= '' and (fence == 0 or maker(generation) == fence) and redis.call('TYPE', KEYS[3]).ok == 'stream' then
  redis.pcall('XGROUP', 'CREATE', KEYS[3], ARGV[4], '0')  -- an error: it is there
  return 'adopted'
end
redis.call('UNLINK', KEYS[3])
redis.call('XGROUP', 'CREATE', KEYS[4], ARGV[4], '0', 'MKSTREAM')
redis.call('SET', KEYS[2], ARGV[3])
return 'made'
"""
)
"""Finds the experience stream, or creates a new one. Senders then resend what is not committed."""

TELL: Final = (
    FENCE
    + """
-- KEYS state, steps, stream, committed. ARGV fence, generation, group, number of entries, number of words that are
-- fields and sequences, then the entries, those words, and fields to be forgotten
heal(KEYS[2], 'string') heal(KEYS[4], 'hash')
local generation = redis.call('GETRANGE', KEYS[2], 0, 62)
if outdated(generation) then return 'outdated' end
if generation ~= ARGV[2] then return 'moved' end
even_when_full()
local entries, words = tonumber(ARGV[4]), tonumber(ARGV[5])
for i = 6 + entries, 5 + entries + words, 2 do redis.call('HSET', KEYS[4], ARGV[i], ARGV[i + 1]) end
for i = 6 + entries + words, #ARGV do redis.call('HDEL', KEYS[4], ARGV[i]) end
if entries > 0 then
  redis.call('XACK', KEYS[3], ARGV[3], unpack(ARGV, 6, 5 + entries))
  redis.call('XDEL', KEYS[3], unpack(ARGV, 6, 5 + entries))
end
return 'told'
"""
)
"""Records what was committed before it deletes entries, so that senders learn of every deleted one."""

SHOW: Final = (
    FENCE
    + """
-- KEYS state, weights, parts of the new ones. ARGV fence, head, doorbell, version
if outdated() then return 0 end
even_when_full()
redis.call('SET', KEYS[2], ARGV[2])
for i = 3, #KEYS do redis.call('PERSIST', KEYS[i]) end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
"""
)
"""Publishes weights whose parts are already stored."""


def outdated(server: Server, keys: RunKeys) -> OwnershipError:
    """The error with which a role of a replaced learner ends."""
    return OwnershipError(
        f"run {keys.name} at {server.address} has a newer learner than the one that this process works for: "
        "it leaves the run to that one"
    )
