"""Orders to the hosts of a run: to leave it and stay away, or to bring another number of actors.

They are fields of the run's ``state``, which hosts read and only its learner's user writes: ``drain:HOST`` (when it was
asked), and ``actors:HOST`` or ``actors:*`` (how many).
"""

from __future__ import annotations

from typing import Final, Literal

from apexrl.errors import ConfigError, LinkError
from apexrl.links.redis.checked_values import whole
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.scripts import PRELUDE
from apexrl.links.redis.server import Server

ALL: Final = "all"
"""In place of a host's name."""
MOST_ACTORS: Final = 4096

_ORDER: Final = (
    PRELUDE
    + """
-- KEYS state. ARGV field, value ('': none), 1 if the same field of single hosts is to go
heal(KEYS[1], 'hash') even_when_full()
if redis.call('HEXISTS', KEYS[1], 'run_id') == 0 then return 'none' end
if redis.call('HGET', KEYS[1], 'phase') == 'finished' then return 'finished' end
if ARGV[3] == '1' then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if string.find(all[i], '^actors:') then redis.call('HDEL', KEYS[1], all[i]) end
  end
end
if ARGV[2] == '' then return redis.call('HDEL', KEYS[1], ARGV[1]) == 1 and 'done' or 'nothing' end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] == 'now' and text(now) or ARGV[2])
return 'done'
"""
)

Answer = Literal["done", "nothing", "none", "finished"]
"""``nothing``: there was no such order. ``none``: there is no such run; ``finished``: it has ended."""


def drain(server: Server, run: str, host: str, undo: bool = False) -> Answer:
    """Have a host leave the run when everything that it has is committed, and let it join no more; or let it again.

    Raises:
        LinkError: the server cannot be reached or refuses.
    """
    return _order(server, run, f"drain:{_named(host)}", "" if undo else "now")


def scale(server: Server, run: str, host: str, actors: int) -> Answer:
    """Have a host, or with ``all`` each one, bring so many actors, now and whenever it joins.

    Raises:
        ConfigError: it is no number of actors.
        LinkError: the server cannot be reached or refuses.
    """
    if not 1 <= actors <= MOST_ACTORS:
        raise ConfigError(f"--actors must be from 1 to {MOST_ACTORS}, not {actors} (apexrl drain takes a host out)")
    where = "*" if host == ALL else _named(host)
    return _order(server, run, f"actors:{where}", str(actors), clear=host == ALL)


def ordered_actors(server: Server, run: str, host: str) -> int:
    """How many actors ``host`` was told to bring; 0: nobody has said it, or the server cannot be asked now."""
    connection = Connection(server)
    try:
        fields = f"actors:{host}", "actors:*"
        own, everybody = connection.pipeline([("HMGET", RunKeys(run).state, *fields)], refusals=True)[0] or (None, None)
    except LinkError:
        return 0
    finally:
        connection.close()
    return number_of_actors(own or everybody)


def number_of_actors(value: bytes | None) -> int:
    """What the server says; 0: nothing, or what no command writes."""
    actors = whole(value)
    return actors if actors <= MOST_ACTORS else 0


def _named(host: str) -> str:
    if not host or len(host) > 64 or host in ("*", ALL):
        raise ConfigError(f"say which host, as apexrl status names it, not {host!r}")
    return host


def _order(server: Server, run: str, field: str, value: str, clear: bool = False) -> Answer:
    connection = Connection(server)
    try:
        answer: Answer = connection.script(_ORDER, [RunKeys(run).state], field, value, int(clear)).decode()
        return answer
    finally:
        connection.close()
