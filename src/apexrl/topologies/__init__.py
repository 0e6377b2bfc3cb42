"""Topologies: how the roles are wired. Each is one function of its own module, ``(Config, Probe) -> Program``.

A topology may also come from outside: from a package with an entry point in the group ``apexrl.topologies``, or from
any module, by the name ``package.module:function``. ``declare`` says what ``apexrl`` must know of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from apexrl.agents import AGENTS
from apexrl.config import Config, WiringConfig
from apexrl.config import topology_settings as families
from apexrl.config.convert import flat
from apexrl.config.game_names import has_opponents
from apexrl.config.outside import imported, installed, ship
from apexrl.config.settings import as_flag, did_you_mean, flag, names_of
from apexrl.errors import AgentError, ConfigError
from apexrl.topologies.kept_pool import keep_pool
from apexrl.topologies.program import BatchesLink, Node, Probe, Program, ReplayLink, WeightsLink

__all__ = [
    "TOPOLOGIES",
    "BatchesLink",
    "Node",
    "Probe",
    "Program",
    "ReplayLink",
    "Topology",
    "WeightsLink",
    "check_agent",
    "check_fixed",
    "check_name",
    "check_read",
    "declare",
    "info",
    "obstacle",
    "runs",
    "topology",
    "unread",
]


class Topology(NamedTuple):
    """One topology: what ``apexrl list`` says of it, which agents it runs, and which settings mean something to it."""

    summary: str
    source: str
    agent: str = "dueling_dqn"
    """Taken where it cannot run the present one."""
    kinds: tuple[str, ...] = ("transition", "sequence")
    """What its agents may learn from (``protocols.Item.kind``)."""
    needs: tuple[str, ...] = ()
    """What its agents must have of ``program.OPTIONAL``, beyond what every agent has."""
    by_gradients: bool = False
    """Nothing but gradients changes its agents: none with running statistics, or weights scaled after updates."""
    fixed: Mapping[str, Any] = MappingProxyType({})
    """Flat names of settings of which it runs no other value."""
    reads: tuple[type[Any], ...] = ()
    """Families of ``config.topology_settings``; the others mean nothing to it."""
    ignores: tuple[str, ...] = ()
    """Flat names of other settings that mean nothing to it."""
    settings: type[Any] | None = None
    """Of a topology from outside this package: a dataclass that declares settings of its own."""


Wire = Callable[[Config, Probe], Program]
"""Wires a topology."""

TOPOLOGIES = {
    "apex": Topology(
        "many actors explore, each in its own way; one learner or several sample a prioritized replay",
        "Horgan et al. 2018, arXiv 1803.00933",
        reads=(families.LearnersSettings, families.AveragingSettings),
    ),
    "ga3c": Topology(
        "one model: predictor threads choose actions for all environments, trainer threads learn from their unrolls",
        "Babaeizadeh et al. 2017, arXiv 1611.06256",
        agent="a2c",
        kinds=("unroll",),
        needs=("networks",),
        by_gradients=True,  # an agent in each thread, which have their networks in common and nothing else
        reads=(families.QueueSettings, families.InferenceSettings, families.GA3CSettings),
        ignores=("pull_period", "prefetch"),
    ),
    "impala": Topology(
        "actors send unrolls through a queue; learners use each once, and correct for the policy lag",
        "Espeholt et al. 2018, arXiv 1802.01561",
        agent="impala",
        kinds=("unroll",),
        reads=(families.QueueSettings, families.LagWaitSettings, families.LearnersSettings, families.AveragingSettings),
    ),
    "a3c": Topology(
        "each worker acts, and applies its own gradients to parameters in shared memory, without a lock",
        "Mnih et al. 2016, arXiv 1602.01783",
        agent="a2c",
        kinds=("unroll",),
        needs=("gradients", "apply", "networks"),
        by_gradients=True,
        fixed={"epochs": 1, "minibatches": 1},  # a worker takes one gradient of an unroll
        reads=(families.A3CSettings, families.ParameterServerSettings),
        ignores=(
            "batch_size",
            "prefetch",
            "device",
            "max_policy_lag",
            "updates_per_second",
            "save_replay",
            "pull_period",
            "random_start",
        ),
    ),
    "gorila": Topology(
        "learners send gradients of replayed batches to parameter servers, each of which owns a slice",
        "Nair et al. 2015, arXiv 1507.04296",
        agent="dqn",
        needs=("gradients", "networks"),
        by_gradients=True,
        reads=(families.LearnersSettings, families.ParameterServerSettings, families.GorilaSettings),
        ignores=("prefetch",),
    ),
    "seed": Topology(
        "an inference server beside the learner chooses actions for all environments, and collects their steps",
        "Espeholt et al. 2020, arXiv 1910.06591",
        agent="impala",
        kinds=("transition", "sequence", "unroll"),
        reads=(families.QueueSettings, families.LagWaitSettings, families.InferenceSettings),
        ignores=("pull_period",),
    ),
    "offline": Topology(
        "a learner samples a replay that holds a dataset; nobody acts, and an evaluator measures the weights",
        "Levine et al. 2020, arXiv 2005.01643",
        agent="discrete_cql",
        ignores=(
            *("actors", "envs_per_actor", "vector", "actor_slots", "min_actors", "random_start", "pull_period"),
            *("epsilon", "epsilon_alpha", "exploration_steps", "sigma", "sigma_alpha", "sigma_least", "pink_noise"),
            *("capacity", "min_size", "updates_per_step", "insert_band", "dataset_share", "save_replay"),
            *("remover", "remover_alpha", "trim_every", "recency_half_life", "lag_half_life", "max_policy_lag"),
            "env_steps",
        ),
    ),
    "sample_factory": Topology(
        "rollout workers step environments, policy workers choose actions, the learner reads unrolls where they lie",
        "Petrenko et al. 2020, arXiv 2006.11751",
        agent="appo",
        kinds=("unroll",),
        reads=(
            families.QueueSettings,
            families.LagWaitSettings,
            families.InferenceSettings,
            families.SampleFactorySettings,
        ),
        ignores=("pull_period",),
    ),
}

ship("topologies", TOPOLOGIES)

_WIRING = names_of([WiringConfig]) - names_of([families.AutotuneSettings])  # all topologies read the latter


def declare(about: Topology) -> Callable[[Wire], Wire]:
    """A decorator for the function of a topology from outside this package: says what must be known of it."""

    def declared(wire: Wire) -> Wire:
        wire.about = about  # type: ignore[attr-defined]
        return wire

    return declared


def check_name(name: str) -> None:
    """Refuse a name that is not of a shipped topology, nor of an installed package's, nor ``package.module:function``.

    Raises:
        ConfigError: the message names the nearest.
    """
    known = [*TOPOLOGIES, *installed("topologies")]
    module, _, function = name.partition(":")
    is_own = function.isidentifier() and all(part.isidentifier() for part in module.split("."))
    if name not in known and not is_own:
        raise ConfigError(
            f"there is no topology {name!r}{did_you_mean(name, known)}. Known: {', '.join(known)}; "
            "one of your own is 'package.module:function'"
        )


def info(name: str) -> Topology:
    """What is known of topology ``name``. One from outside is imported.

    Raises:
        ConfigError: there is no such topology.
    """
    if name in TOPOLOGIES:
        return TOPOLOGIES[name]
    wire = _function(name)
    summary = (wire.__doc__ or "").strip().partition("\n")[0]
    undeclared = Topology(summary, wire.__module__, kinds=("transition", "sequence", "unroll"), reads=(WiringConfig,))
    about: Topology = getattr(wire, "about", undeclared)
    return about


def topology(name: str) -> Wire:
    """The function that wires ``name``. Called, it refuses what that cannot run (``check_fixed``, ``check_probed``).

    Raises:
        ConfigError: there is no such topology; or, when called, it takes or returns something else than a ``Wire``.
    """
    wire = _function(name)

    @functools.wraps(wire)
    def wired(config: Config, probe: Probe) -> Program:
        check_fixed(config)
        check_probed(name, config.agent.agent, probe)
        check_agents(config, probe)
        must = f"topology {name} must be a function (config, probe) -> Program; it"
        try:
            inspect.signature(wire).bind(config, probe)
        except TypeError as error:
            raise ConfigError(f"{must} takes {inspect.signature(wire)}: {error}") from error
        program: Any = wire(config, probe)
        if not isinstance(program, Program):
            raise ConfigError(f"{must} returned {program!r}: end it with the Program that it has made")
        if has_opponents(config.env, config.env.env):
            keep_pool(program, probe)
        return program

    return wired


def _function(name: str) -> Wire:
    """The function of topology ``name``, imported.

    Raises:
        ConfigError: there is no such topology, module or function.
    """
    check_name(name)
    shipped = f"apexrl.topologies.{name}:{name}"
    where = shipped if name in TOPOLOGIES else name if ":" in name else installed("topologies")[name].value
    found = imported(f"topology {name!r}", where)
    if not callable(found):
        module_name, _, function_name = where.partition(":")
        raise ConfigError(f"topology {name!r}: module {module_name} has no function {function_name!r}")
    return cast("Wire", found)


def runs(name: str, agent: str) -> bool:
    """Whether topology ``name`` can run ``agent``, as far as names tell: one of your own is looked at by the probe."""
    return agent not in AGENTS or not _obstacle(name, AGENTS[agent].item, AGENTS[agent].by_gradients)


def obstacle(config: Config) -> str:
    """Why its topology cannot run its agent, to be read after "which"; empty where nothing is known against it."""
    agent, name = AGENTS.get(config.agent.agent), config.topology
    found = _obstacle(name, agent.item, agent.by_gradients) if agent else ""
    has, fixed = _unfixed(config)
    return found or (f"has {has}, and not {fixed}" if has else "")


def check_agent(name: str, agent: str) -> None:
    """Refuse a shipped agent that topology ``name`` cannot run.

    Raises:
        ConfigError: the message names topologies that can.
    """
    if not runs(name, agent):
        raise ConfigError(_refusal(name, agent, AGENTS[agent].item, AGENTS[agent].by_gradients))


def check_fixed(config: Config) -> None:
    """Refuse settings with which its topology runs no agent.

    Raises:
        ConfigError: the message says how they may be.
    """
    has, fixed = _unfixed(config)
    if has:
        kind = AGENTS[config.agent.agent].item if config.agent.agent in AGENTS else info(config.topology).kinds[0]
        others = [name for name, about in TOPOLOGIES.items() if not about.fixed and kind in about.kinds]
        raise ConfigError(
            f"topology {config.topology} runs agents with {fixed} alone, and not with {has}: set them so, or use "
            f"--topology {', '.join(others)}"
        )


def check_probed(name: str, agent: str, probe: Probe) -> None:
    """Refuse whatever agent topology ``name`` cannot run, one of your own too.

    Raises:
        ConfigError: it learns from something else, or more than gradients makes it what it is; the message names
            topologies that can run it.
        AgentError: it lacks what the topology needs of it.
    """
    if probe.item.kind not in info(name).kinds:
        raise ConfigError(_refusal(name, agent, probe.item.kind, True))
    missing = [member for member in info(name).needs if member not in probe.offers]
    if missing:
        raise AgentError(
            f"topology {name} cannot run agent {agent}, which lacks {', '.join(missing)}: see apexrl.protocols.Agent "
            "for what that is, or choose another --topology"
        )
    by_gradients = bool(probe.places) and (agent not in AGENTS or AGENTS[agent].by_gradients)
    if info(name).by_gradients and not by_gradients:
        raise ConfigError(_refusal(name, agent, probe.item.kind, False))


def check_agents(config: Config, probe: Probe) -> None:
    """Refuse rows that are no whole number of environments, where rows are agents.

    Raises:
        ConfigError: the message names a number that is.
    """
    k, rows = len(probe.spec.agents), config.actor.envs_per_actor
    if k and rows % k:
        raise ConfigError(
            f"--envs-per-actor {rows} counts agents, of which {config.env.env} has {k}: give a multiple, as "
            f"--envs-per-actor {-(-rows // k) * k}"
        )
    if k and config.wiring.wait_at_policy_lag:
        raise ConfigError(
            "--wait-at-policy-lag counts unrolls that begin together, and those of several agents do not: leave it out"
        )
    if has_opponents(config.env, config.env.env) and config.env.stack > 1:
        raise ConfigError(
            f"--stack {config.env.stack}: policies of a pool see one frame. Stack frames in the environment "
            "(SuperSuit's frame_stack_v1)"
        )


def unread(name: str) -> set[str]:
    """Flat names of the settings that mean nothing to topology ``name``, whoever the agent is."""
    about = info(name)
    return (_WIRING - names_of(about.reads)).union(about.ignores)


def check_read(name: str, given: Iterable[str]) -> None:
    """Refuse settings that somebody has ``given`` and that topology ``name`` never reads.

    Raises:
        ConfigError: the message names the topologies that do.
    """
    nothing = unread(name)
    for setting in given:
        if setting in nothing:
            others = ", ".join(other for other in TOPOLOGIES if setting not in unread(other))
            instead = f", or choose one of {others}" if others else ""
            raise ConfigError(f"{flag(setting)} means nothing to topology {name}: leave it out{instead}")


def _obstacle(name: str, kind: str, by_gradients: bool) -> str:
    """Why topology ``name`` cannot run an agent that learns from ``kind``; empty where it can."""
    about = info(name)
    if kind not in about.kinds:
        return f"learns from {kind}s and not from {' or '.join(f'{other}s' for other in about.kinds)}"
    if about.by_gradients and not by_gradients:
        return (
            "is made of more than gradients (running statistics, weights scaled after an update, resets, or weights "
            "that none of its `networks` holds)"
        )
    return ""


def _refusal(name: str, agent: str, kind: str, by_gradients: bool) -> str:
    able = ", ".join(other for other in TOPOLOGIES if not _obstacle(other, kind, by_gradients))
    instead = f"use --topology {able}" if able else "no topology of this version can"
    return (
        f"topology {name} cannot run agent {agent}, which {_obstacle(name, kind, by_gradients)}: {instead}, or "
        f"another --agent (apexrl list topologies says which)"
    )


def _unfixed(config: Config) -> tuple[str, str]:
    """Flags of what its topology wants otherwise: as they are, and as they would have to be; empty: all is well."""
    values, fixed = flat(config), info(config.topology).fixed
    off = [name for name, value in fixed.items() if values[name] != value]
    has, wants = (" ".join(as_flag(name, of[name]) for name in off) for of in (values, fixed))
    return has, wants
