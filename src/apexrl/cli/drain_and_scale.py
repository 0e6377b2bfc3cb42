"""``apexrl drain`` and ``apexrl scale``: orders to the hosts of a run on a Redis server."""

from __future__ import annotations

import time

from rich.console import Console

from apexrl.cli.say import Say
from apexrl.errors import ConfigError
from apexrl.links.redis import host_orders
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.host_orders import ALL
from apexrl.links.redis.keys import check_name
from apexrl.links.redis.run_listing import MemberView, RunView, look
from apexrl.links.redis.server import Server

_LOOK_SECONDS = 0.2


def drain(
    url: str, run: str, host: str, undo: bool = False, wait_seconds: float = 120.0, console: Console | None = None
) -> int:
    """Ask a host to leave a run and stay away, and wait until it has; with ``undo`` let it join again.

    Returns:
        0; 1 when there is no such run or it has ended, or the host is still there after ``wait_seconds``.

    Raises:
        ConfigError: the URL or a name is invalid.
        LinkError: the server cannot be reached.
    """
    server, say = Server(url), Say(console)
    where = f"run {check_name(run)} at {server.address}"
    answer = host_orders.drain(server, run, host, undo)
    if answer in ("none", "finished"):
        return say(f"there is no {where}" if answer == "none" else f"{where} has ended", 1)
    if undo:
        return say(f"host {host} may join {where} again" if answer == "done" else f"host {host} was not drained")
    connection, ends = Connection(server), time.monotonic() + wait_seconds
    try:
        view = look(connection, run)
        there = _members(view, host)
        if not there:
            return say(f"no host {host} is at {where} now; it will be refused; there are: {_known(view)}")
        all_of_it = f", with all of its {len(there)} commands" if len(there) > 1 else ""
        say(f"host {host} was asked to leave {where}{all_of_it}; it hands over what it has")
        if not wait_seconds:
            return 0
        while there and time.monotonic() < ends:
            time.sleep(_LOOK_SECONDS)
            there = _members(look(connection, run), host)
    finally:
        connection.close()
    if there:
        return say(f"host {host} is still there after {wait_seconds:.0f} s; see: apexrl status --watch", 1)
    return say(f"host {host} has left, and is refused until apexrl drain {host} --undo")


def scale(url: str, run: str, host: str, actors: int, console: Console | None = None) -> int:
    """Have a host, or all, bring another number of actors.

    Returns:
        0; 1 when there is no such run or host, the run has ended, or it has not so many slots.

    Raises:
        ConfigError: the URL, a name or the number is invalid.
        LinkError: the server cannot be reached.
    """
    server, say = Server(url), Say(console)
    where = f"run {check_name(run)} at {server.address}"
    connection = Connection(server)
    try:
        view = look(connection, run)
    finally:
        connection.close()
    if view.record is None:
        return say(f"there is no {where}", 1)
    hosts = _members(view, host)
    if not hosts:
        return say(f"no {'actor host' if host == ALL else f'host {host}'} is at {where}; there are: {_known(view)}", 1)
    who = f"host {hosts[0].host}"
    if len(hosts) > 1:
        who = f"each of {len(hosts)} " + ("hosts" if host == ALL else f"commands of {who}")
    others = sum(len(member.slots) for member in view.alive if member not in hosts)
    if actors * len(hosts) + others > (most := view.record.actor_slots):
        return say(
            f"{where} has {most} actor slots, of which others have {others}: at most "
            f"{(most - others) // len(hosts)} for {who}. More slots: --actor-slots of the learner",
            1,
        )
    answer = host_orders.scale(server, run, host, actors)
    if answer != "done":
        return say(f"there is no {where}" if answer == "none" else f"{where} has ended", 1)
    return say(f"{who} was told to bring {actors} actor{'s' if actors != 1 else ''} to {where}")


def _members(view: RunView, host: str) -> list[MemberView]:
    """Living actor hosts of that name, or all; programs with a client take no orders."""
    return [member for member in view.alive if member.kind == "host" and host in (ALL, member.host)]


def _known(view: RunView) -> str:
    """Names of hosts that are there, at most eight."""
    return ", ".join(sorted({member.host for member in view.alive})[:8]) or "none"


def checked_host(host: str, command: str) -> str:
    """The host, which these commands cannot do without; also as ``apexrl status`` shows it, HOST:PID."""
    if not host:
        raise ConfigError(f"say which host: apexrl {command} HOST --redis URL --run NAME (apexrl status lists them)")
    name, _, process = host.rpartition(":")
    return name if name and ":" not in name and process.isdecimal() else host
