"""A program: the roles of a run, their number, and the links between them. Data only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from apexrl.config import Config
from apexrl.protocols import Item, Place, Role
from apexrl.roles.role_traits import RoleTraits, traits_of
from apexrl.spec import EnvSpec, Field

Factory = Callable[..., Role]
"""``Factory(context, **ports) -> Role``; usually the role's class."""

_LEAST_ROOM, _ROOM = 16, 4  # actors that an auto-tuner may come to, unless --actor-slots says it: ours, to look around


OPTIONAL = ("gradients", "apply", "networks")
"""What an agent may have beyond ``protocols.Agent``, and some topologies need of it."""


@dataclass(frozen=True)
class Probe:
    """What a topology must know of an environment and an agent.

    Args:
        spec: what the environment shows and takes.
        step_spec: the extra fields that the agent records with every step.
        weights_nbytes: bytes of its acting parameters.
        item: what it learns from.
        offers: what it has of ``OPTIONAL``.
        vectors: what an update changes, where the agent says (``agents.named_vectors``): name -> float32 values.
        places: where its acting parameters lie in these (``parameter_layout``); empty: gradients alone do not make it.
    """

    spec: EnvSpec
    step_spec: dict[str, Field]
    weights_nbytes: int
    item: Item = Item()  # noqa: RUF009
    offers: tuple[str, ...] = ()
    vectors: dict[str, int] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayLink:
    """Placeholder of a replay among a role's ports, until a launcher makes it.

    ``options`` are the keyword arguments of ``apexrl.replay.Replay``, or of ``make``, which returns one that is full
    already.
    """

    options: Mapping[str, Any]
    make: Callable[..., Any] | None = None


@dataclass(frozen=True)
class MixedLink:
    """Placeholder of a mix of two replays (``apexrl.replay.MixedReplay``): one that is written to, and a dataset's.

    ``share``: part of every batch that is the dataset's.
    """

    replay: ReplayLink
    dataset: ReplayLink
    share: float


@dataclass(frozen=True)
class BatchesLink:
    """Placeholder of batches that a ``replay`` role samples and learners take.

    ``options`` are the keyword arguments of ``apexrl.replay.Replay.serve``.
    """

    replay: ReplayLink | MixedLink
    options: Mapping[str, Any]


@dataclass(frozen=True)
class WeightsLink:
    """Placeholder of the weights board: latest-only, one publisher, any number of readers.

    ``nbytes``: bytes of one published set of weights.
    """

    nbytes: int


@dataclass(frozen=True)
class ReceiptsLink:
    """Placeholder of an intake's receipts: what it has committed, in memory that outlives it.

    ``resumed``: hosts may have been at work for this run before.
    """

    resumed: bool = False


@dataclass(frozen=True)
class Link:
    """Placeholder of any other link, until a launcher makes it: ``make(shared=…, **options)``, with ``shared`` for
    processes and without for roles that take turns in one. What it makes is closed with the run, if it can be.
    """

    make: Callable[..., Any]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class CountLink:
    """Stands for a count inside a role (its threads of one kind) that an auto-tuner may change while it works.

    A role reads its ``value`` as it goes.
    """

    name: str
    start: int
    most: int


@dataclass(frozen=True)
class Node:
    """One role of a program.

    Args:
        name: of the role: ``actor``; its workers are ``actor-0`` … ``actor-<count-1>``, or as ``indices`` says.
        factory: makes the role inside its worker, ``factory(context, **ports)``.
        ports: what the role is given: settings and links.
        restarts: times that one worker may be started again before the run gives up.
        env_timeout: seconds that one environment call may take before the worker counts as hung; None: no limit.
        nice: how much it gives way to others for the processor, 0 … 19.
        indices: slots of the run that these workers serve in, where others of the role work elsewhere; empty: all.
        generations: of the leases of these slots.
        most: workers that may come to run, by an auto-tuner or ``apexrl scale``; fewer than ``count``: their number
            stays.
        least: workers that are enough where some were given up on; 0: all are needed.
        moves: may run on other hosts (``crossing``).
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
    most: int = 0
    least: int = 0
    moves: bool = False

    @property
    def leases(self) -> list[tuple[int, int]]:
        """(slot, generation of its lease) of every worker there may be; 0 for a slot that needs no lease."""
        if not self.indices:
            return [(index, 0) for index in range(max(self.count, self.most))]
        return list(zip(self.indices, self.generations, strict=True))

    @property
    def traits(self) -> RoleTraits:
        return traits_of(self.factory)


@dataclass
class Program:
    """Roles and links of one run, in the order in which they are named."""

    config: Config
    nodes: list[Node] = field(default_factory=list)
    thread_counts: list[CountLink] = field(default_factory=list)

    @property
    def tunable(self) -> dict[str, tuple[int, int]]:
        """What an auto-tuner may change: name of a role, or of a thread count -> (how many at first, at most)."""
        roles = {node.name: (node.count, node.most) for node in self.nodes if node.most >= node.count}
        return roles | {count.name: (count.start, count.most) for count in self.thread_counts}

    def replay(self, **options: Any) -> ReplayLink:
        """A replay with these options (see ``apexrl.replay.Replay``)."""
        return ReplayLink(options)

    def filled_replay(self, make: Callable[..., Any], **options: Any) -> ReplayLink:
        """The replay that ``make(**options)`` returns, into which nobody writes."""
        return ReplayLink(options, make)

    def batches(self, replay: ReplayLink | MixedLink, **options: Any) -> BatchesLink:
        """Batches of a replay for several learners (see ``apexrl.replay.Replay.serve``)."""
        return BatchesLink(replay, options)

    def weights(self, nbytes: int) -> WeightsLink:
        """A board for weights of ``nbytes`` bytes."""
        return WeightsLink(nbytes)

    def link(self, make: Callable[..., Any], **options: Any) -> Link:
        """A link that ``make(shared=…, **options)`` makes, once, wherever roles name it."""
        return Link(make, options)

    def thread_count(self, name: str, start: int, most: int) -> CountLink:
        """A count inside a role: ``start`` at first, and from 1 to ``most`` while an auto-tuner is at work."""
        count = CountLink(name, start, max(start, most))
        self.thread_counts.append(count)
        return count

    def role(
        self,
        factory: Factory,
        *,
        count: int = 1,
        restarts: int = 0,
        env_timeout: float | None = None,
        nice: int = 0,
        name: str = "",
        most: int = 0,
        least: int = 0,
        moves: bool = False,
        **ports: Any,
    ) -> Node:
        """Add ``count`` workers of one role; ``ports`` become keyword arguments of ``factory``.

        ``name``: of the role; default: as its traits say. ``most``: workers that there may come to be;
        ``least``: that are enough; ``moves``: they may run on other hosts.

        Raises:
            ValueError: there is such a role already, or the count is negative.
        """
        name = name or traits_of(factory).name or getattr(factory, "__name__", type(factory).__name__).lower()
        if any(node.name == name for node in self.nodes):
            raise ValueError(f"the program has a role {name!r} already; raise its count instead")
        if count < 0:
            raise ValueError(f"role {name!r} cannot have {count} workers: give 0 or more")
        node = Node(name, factory, count, ports, restarts, env_timeout, nice, most=most, least=least, moves=moves)
        self.nodes.append(node)
        return node


def stepping(config: Config, nice: int = 5) -> dict[str, Any]:
    """How a role that steps environments is kept going, as arguments of ``Program.role``.

    ``nice``: where processors are short, it waits for those that learn and choose actions, and they do not for it.
    """
    return {"restarts": config.actor.actor_restarts, "env_timeout": config.actor.env_timeout, "nice": nice}


def acting(config: Config, nice: int = 5) -> dict[str, Any]:
    """As ``stepping``, of the role that ``--actors`` counts: it may be scaled, and may move to other hosts."""
    actors = config.actor
    counts = {"count": actors.actors, "most": room(config), "least": actors.min_actors, "moves": True}
    return {**counts, **stepping(config, nice)}


def room(config: Config) -> int:
    """Actors, or whoever steps environments, for whom links must have room: there may be more than at first."""
    return max(config.actor.actors, config.actor.actor_slots)


def with_room(config: Config) -> Config:
    """``config`` with its number of actor slots settled, for a run whose actors are tuned."""
    actor = config.actor
    slots = actor.actor_slots or max(_LEAST_ROOM, _ROOM * actor.actors)
    return replace(config, actor=replace(actor, actor_slots=slots))
