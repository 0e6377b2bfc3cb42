"""Where a run's parts live: on this machine alone (None), also on hosts that join through Redis or TCP, or on Ray.

A placement is not part of the configuration: it names machines, and may hold a password or a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from apexrl.errors import ConfigError

if TYPE_CHECKING:
    from apexrl.links.tcp.tls import MadeCertificate, ServerTls


def host_and_port(text: str) -> tuple[str, int]:
    """``HOST:PORT`` as a pair. An empty host is 127.0.0.1; an IPv6 address stands in brackets.

    Raises:
        ValueError: it is none.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(text)
    bare = host.removeprefix("[").removesuffix("]")
    if (":" in bare) != (host != bare):
        raise ValueError(text)
    return bare or "127.0.0.1", int(port)


RAY_FLAGS: Final = ("actor_cpus", "learner_gpus", "inference_gpus", "learner_nodes", "replay_shards")
"""Fields of ``Ray`` that are flags of the command line; the others can be set from Python only."""


@dataclass(frozen=True)
class Redis:
    """The learner's side of a run that other hosts join through a Redis server, with actors."""

    url: str = field(repr=False)
    """redis://USER:PASSWORD@HOST:PORT, with TLS rediss://; redis+sentinel://HOST:PORT/MASTER, redis+cluster://HOST:PORT."""
    run: str = ""
    """The run's name on the server; empty: the name of its folder."""
    actors: bool | None = True
    """Whether the learner's machine brings actors too; None: as the resumed run did."""
    token: str = field(default="", repr=False)
    """Secret shared with the hosts, which signs the run's record; empty: the record is not signed."""
    replace_run: bool = False
    """Delete what the server keeps of another run of that name which has no learner."""
    listen: str = ""
    """HOST:PORT of the gateway, where workers of other hosts need the learner's servers; empty: any free port of the
    interface by which this host reaches the server."""
    advertise: str = ""
    """HOST:PORT at which other hosts reach it, if that is another address."""


@dataclass(frozen=True)
class Listen:
    """The learner's side of a run that other hosts join over TCP, with workers that need its servers."""

    listen: str
    """HOST:PORT. An empty host is this machine alone, 0.0.0.0 all its addresses; brackets around an IPv6 address."""
    token: str = field(repr=False)
    """Secret that a host must know to join."""
    tls: ServerTls | MadeCertificate | None = None
    """The run's certificate; None: no TLS."""

    @property
    def address(self) -> tuple[str, int]:
        """(host, port). Raises ValueError when ``listen`` is not HOST:PORT."""
        return host_and_port(self.listen)


@dataclass(frozen=True)
class Ray:
    """A run on a Ray cluster, and the resources that it asks for."""

    address: str = "auto"
    """``auto``: the cluster that this machine belongs to; ``local``: a new one on this machine alone, which ends with
    the run; else HOST:PORT of a cluster's head."""
    actor_cpus: float = 1.0
    """Processors that Ray reserves for each actor; below one for simulators that mostly wait."""
    learner_cpus: float = 1.0
    """Processors for the learner and the evaluator beside it."""
    learner_gpus: float = 0.0
    """GPUs for each learner."""
    learner_nodes: int = 1
    """Nodes over which the learners of ``apex`` and ``impala`` are spread, each beside shards of its own."""
    inference_cpus: float = 1.0
    """Processors for each inference server or policy worker."""
    inference_gpus: float = 0.0
    """GPUs for each inference server, policy worker or model server; below one they share one."""
    replay_shards: int = 0
    """Actor groups, each with a shard of the replay; 0: one per node, and no more than there are actors."""
    shard_cpus: float = 1.0
    """Processors for each shard."""
    wait_seconds: float = 10.0
    """Seconds to wait for these resources (a cluster that scales by itself needs minutes)."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that no cluster can provide; the message names it."""
        for entry in fields(self)[1:]:
            name, value = entry.name, getattr(self, entry.name)
            flag = f"--{name.replace('_', '-')}" if name in RAY_FLAGS else f"Ray {name}"
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ConfigError(f"{flag} must be a number from 0 on, not {value!r}")
            if name in ("learner_cpus", "shard_cpus") and not value:
                raise ConfigError(f"{flag} must be more than 0: Ray schedules nothing without resources")
            if name in ("learner_nodes", "replay_shards") and value != int(value):
                raise ConfigError(f"{flag} must be a whole number, not {value}")
            if name == "learner_nodes" and not value:
                raise ConfigError(f"{flag} must be at least 1")
            if name in ("learner_gpus", "inference_gpus") and value > 1 and value != int(value):
                raise ConfigError(f"{flag} {value:g}: beyond one, Ray gives whole GPUs only")


Placement = Redis | Listen | Ray
