"""Several replays of one kind in a program, of which each worker of a role serves one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apexrl.protocols import Context, Role
from apexrl.roles.role_traits import RoleTraits, traits_of
from apexrl.topologies.program import Factory, MixedLink, ReplayLink


def queue_ports(replays: Sequence[ReplayLink | MixedLink]) -> dict[str, Any]:
    """The ports of a role that is made by ``OfQueue``."""
    return {f"queue_{i}": one for i, one in enumerate(replays)}


def queue_names(ports: Mapping[str, Any]) -> list[str]:
    """The names of ``queue_ports`` among a role's ports, in their order."""
    return sorted((name for name in ports if name.startswith("queue_")), key=lambda name: int(name[6:]))


@dataclass(frozen=True)
class OfAllQueues:
    """Makes a role that serves all queues: its ``replays`` are they."""

    role: Factory

    @property
    def traits(self) -> RoleTraits:
        return traits_of(self.role)

    def __call__(self, context: Context, **ports: Any) -> Role:
        queues = [ports.pop(name) for name in queue_names(ports)]
        return self.role(context, replays=queues, **ports)


@dataclass(frozen=True)
class OfQueue:
    """Makes a role on one of several queues: slot i serves queue i mod N, whoever serves in it, and the only one where
    the others are elsewhere."""

    role: Factory

    @property
    def traits(self) -> RoleTraits:
        return traits_of(self.role)

    def __call__(self, context: Context, **ports: Any) -> Role:
        queues = [ports.pop(name) for name in queue_names(ports)]
        return self.role(context, replay=queues[context.index % len(queues)], **ports)
