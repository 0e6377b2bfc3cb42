"""Which roles of a program may run on other hosts, and which links then cross between hosts.

A topology says of each role whether it moves (``Program.role``). The kind of a link that crosses says what carries it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apexrl.config import Config, HostsConfig
from apexrl.errors import ConfigError
from apexrl.links.local.gradient_ring import GradientLink
from apexrl.links.local.inference import InferenceLink
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.links.local.shared_parameters import SharedParameters
from apexrl.topologies.program import BatchesLink, Link, MixedLink, Node, Program, ReceiptsLink, ReplayLink, WeightsLink
from apexrl.topologies.queue_links import queue_names

_LINKS = (ReplayLink, BatchesLink, WeightsLink, ReceiptsLink, Link)


@dataclass(frozen=True)
class Crossing:
    """The roles that may run on other hosts, and the links between them and the rest. Links of one kind that a role
    reads from several ports are in the order of these ports."""

    moving: tuple[Node, ...]
    staying: tuple[Node, ...]
    replays: tuple[ReplayLink, ...] = ()
    """Into which moving roles write: one, or that of every learner in turn."""
    weights: WeightsLink | Link | None = None
    """Of which moving roles read whole weights: a board, or ``ShardedParameters``."""
    inference: Link | None = None
    """Through which moving roles ask a server that stays."""
    gradients: Link | None = None
    """Through which moving roles send gradients to parameter servers that stay."""
    parameters: Link | None = None
    """``ShardedParameters`` of those servers, where moving roles also send them gradients."""
    inner: tuple[Any, ...] = ()
    """Links among moving roles alone: every host makes its own."""


def crossing(program: Program) -> Crossing:
    """How ``program`` can be cut between hosts.

    Raises:
        ConfigError: nothing of it moves; or a link crosses that only one machine's memory can carry.
    """
    moving = tuple(node for node in program.nodes if node.moves)
    staying = tuple(node for node in program.nodes if not node.moves)
    name = program.config.topology
    if not moving:
        raise ConfigError(f"topology {name} keeps all of its roles on one machine: none can run on other hosts")
    there = {id(port) for node in staying for port in node.ports.values()}
    there |= {id(source) for node in staying for port in node.ports.values() for source in _sources(port)}
    links = _links(moving)
    inner = tuple(link for link in links if id(link) not in there)
    found: dict[str, list[Any]] = {"replays": [], "weights": [], "inference": [], "gradients": []}
    for link in links:
        if id(link) in there:
            kind = _kind(link)
            if not kind:
                made = link.make.__qualname__ if isinstance(link, Link) else type(link).__name__
                raise ConfigError(
                    f"topology {name} cannot run over several hosts as it is set: its {moving[0].name} and its "
                    f"{staying[0].name} share {made}, which lies in the memory of one machine"
                    + (": set --no-hogwild" if made == SharedParameters.__qualname__ else "")
                )
            found[kind].append(link)
    for kind in ("weights", "inference", "gradients"):
        if len(found[kind]) > 1:
            raise ConfigError(f"topology {name} cannot run over several hosts: it has several {kind} links")
    one = {kind: found[kind][0] if found[kind] else None for kind in ("weights", "inference", "gradients")}
    parameters = None
    if one["gradients"] is not None:
        parameters, one["weights"] = one["weights"], None
    return Crossing(moving, staying, tuple(found["replays"]), **one, parameters=parameters, inner=inner)


def check_rounding(config: Config, found: Crossing) -> None:
    """Refuse to round weights where none travel.

    Raises:
        ConfigError: they are to be rounded, and none do.
    """
    precision = config.hosts.weights_precision
    if found.weights is None and precision != HostsConfig.weights_precision:
        raise ConfigError(
            f"--weights-precision {precision} means nothing to topology {config.topology} as it is placed: no weights "
            "travel to other machines, but observations and actions, or gradients and whole parameters. Leave it out"
        )


def _sources(port: Any) -> Iterator[Any]:
    """What batches, or a mix, are drawn from."""
    while isinstance(port, BatchesLink | MixedLink):
        port = port.replay
        yield port


def _links(nodes: tuple[Node, ...]) -> list[Any]:
    """Every link among the ports of ``nodes``, once; those of several queues in their order."""
    found: dict[int, Any] = {}
    for node in nodes:
        queues = queue_names(node.ports)
        names = [*queues, *(name for name in node.ports if name not in queues)]
        found |= {id(node.ports[name]): node.ports[name] for name in names if isinstance(node.ports[name], _LINKS)}
    return list(found.values())


def _kind(link: Any) -> str:
    """The field of ``Crossing`` for a link that crosses; empty: nothing carries it to another host."""
    if isinstance(link, ReplayLink):
        return "replays"
    if isinstance(link, WeightsLink):
        return "weights"
    if isinstance(link, Link):
        made: dict[Any, str] = {
            ShardedParameters: "weights",
            GradientLink: "gradients",
            InferenceLink.make: "inference",
        }
        return made.get(link.make, "")
    return ""
