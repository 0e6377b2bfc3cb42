"""A program: which roles run, how many of each, and what connects them. Data only; a launcher brings it to life."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from apexrl.config import Config
from apexrl.protocols import Item, Role
from apexrl.spec import EnvSpec, Field

Factory = Callable[..., Role]
"""``Factory(context, **ports) -> Role``; usually the role's class."""


@dataclass(frozen=True)
class Probe:
    """What must be known of an environment and an agent before a program can be written down.

    Args:
        spec: what the environment shows and takes.
        step_spec: the extra fields that the agent records with every step.
        weights_nbytes: bytes of its acting parameters.
        item: what it learns from.
    """

    spec: EnvSpec
    step_spec: dict[str, Field]
    weights_nbytes: int
    item: Item = Item()  # noqa: RUF009


@dataclass(frozen=True)
class ReplayLink:
    """Stands for the replay among a role's ports until a launcher puts a real one there.

    ``options`` are the keyword arguments of ``apexrl.replay.Replay``.
    """

    options: Mapping[str, Any]


@dataclass(frozen=True)
class BatchesLink:
    """Stands for batches that a ``replay`` role samples and learners take.

    ``options`` are the keyword arguments of ``apexrl.replay.Replay.serve``.
    """

    replay: ReplayLink
    options: Mapping[str, Any]


@dataclass(frozen=True)
class WeightsLink:
    """Stands for the weights board: latest-only, one publisher, any number of readers.

    ``nbytes``: bytes of one published set of weights.
    """

    nbytes: int


@dataclass(frozen=True)
class ReceiptsLink:
    """Stands for what an intake has committed of whom: memory that outlives it.

    ``resumed``: hosts may have been at work for this run before.
    """

    resumed: bool = False


@dataclass(frozen=True)
class Node:
    """One role of a program.

    Args:
        name: of the role: ``actor``; its workers are ``actor-0`` … ``actor-<count-1>``, or as ``indices`` says.
        factory: makes the role inside its worker, ``factory(context, **ports)``.
        count: workers.
        ports: what the role is given: settings and links.
        restarts: times that one worker may be started again before the run gives up.
        env_timeout: seconds that one environment call may take before the worker counts as hung; None: no limit.
        nice: how much it gives way to others for the processor, 0 … 19.
        indices: slots of the run that these workers serve in, where others of the role work elsewhere; empty: all.
        generations: of the leases of these slots.
    """

    name: str
    factory: Factory
    count: int
    ports: Mapping[str, Any]
    restarts: int = 0
    env_timeout: float | None = None
    nice: int = 0
    indices: tuple[int, ...] = ()
    generations: tuple[int, ...] = ()

    @property
    def leases(self) -> list[tuple[int, int]]:
        """(slot, generation of its lease) of every worker; 0 for a slot that needs no lease."""
        if not self.indices:
            return [(index, 0) for index in range(self.count)]
        return list(zip(self.indices, self.generations, strict=True))


@dataclass
class Program:
    """Roles and links of one run, in the order in which they are named."""

    config: Config
    nodes: list[Node] = field(default_factory=list)

    def replay(self, **options: Any) -> ReplayLink:
        """A replay with these options (see ``apexrl.replay.Replay``)."""
        return ReplayLink(options)

    def batches(self, replay: ReplayLink, **options: Any) -> BatchesLink:
        """Batches of a replay for several learners (see ``apexrl.replay.Replay.serve``)."""
        return BatchesLink(replay, options)

    def weights(self, nbytes: int) -> WeightsLink:
        """A board for weights of ``nbytes`` bytes."""
        return WeightsLink(nbytes)

    def role(
        self,
        factory: Factory,
        *,
        count: int = 1,
        restarts: int = 0,
        env_timeout: float | None = None,
        nice: int = 0,
        name: str = "",
        **ports: Any,
    ) -> Node:
        """Add ``count`` workers of one role; ``ports`` become keyword arguments of ``factory``.

        ``name``: of the role; default: the factory's, in lower case.
        """
        name = name or getattr(factory, "__name__", type(factory).__name__).lower()
        if any(node.name == name for node in self.nodes):
            raise ValueError(f"the program has a role {name!r} already; raise its count instead")
        node = Node(name, factory, count, ports, restarts, env_timeout, nice)
        self.nodes.append(node)
        return node
