"""The plan of a comparison: a configuration for each pair of topology and agent, equal in all shared settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from apexrl import agents, presets, topologies
from apexrl.agents.default_settings import default_image_size
from apexrl.agents.env_facts import EnvFacts
from apexrl.config import Config, EnvConfig, EvaluatorConfig, convert
from apexrl.config.settings import as_flag, did_you_mean
from apexrl.errors import ConfigError, EnvError
from apexrl.launch.env_look import env_facts
from apexrl.presets import unseen
from apexrl.presets.unseen import Recipe
from apexrl.run.folder import env_name
from apexrl.topologies.validation import unused, validate

EQUAL: Final = (
    *vars(EnvConfig()),
    *vars(EvaluatorConfig()),
    *("actors", "envs_per_actor", "vector", "actor_slots", "env_timeout"),
    *("network", "encoder", "hidden", "image_units"),
    *("device", "learner_threads"),
    *("env_steps", "minutes", "stop_at_return"),
)
"""Settings that all runs share, even where the preset has its own for an agent: environment, processes, network,
device, evaluations, budget."""


@dataclass(frozen=True)
class Arm:
    """One pair of topology and agent."""

    config: Config
    """With seed 1, and without a folder."""
    put_aside: Mapping[str, Any] = field(default_factory=dict)
    """The preset's own settings for this agent that are not used, so that all arms are equal: flat name -> value."""

    @property
    def topology(self) -> str:
        return self.config.topology

    @property
    def agent(self) -> str:
        return self.config.agent.agent

    @property
    def label(self) -> str:
        return f"{self.topology} · {self.agent}"

    def run(self, seed: int, runs: Path) -> Config:
        """Its run with ``seed``, in the folder ``runs``."""
        name = re.sub(r"[^\w.-]+", "-", f"{self.topology}-{self.agent}-seed{seed}")
        return replace(self.config, seed=seed, name=name, out=str(runs))


@dataclass(frozen=True)
class Plan:
    """A whole comparison."""

    env: str
    """Preset or environment, as given."""
    arms: Sequence[Arm]
    seeds: Sequence[int]
    goal: float | None = None
    """Mean return of an evaluation at which the task counts as done; None: no such return is known."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Pairs that cannot run: label -> reason, worded to follow "which"."""

    @property
    def config(self) -> Config:
        """A configuration that has the shared settings."""
        return self.arms[0].config

    def order(self) -> list[tuple[Arm, int]]:
        """Seed 1 of every arm, then seed 2 of every arm …: changes on the machine affect all arms alike."""
        return [(arm, seed) for seed in self.seeds for arm in self.arms]


def plan(
    env: str,
    topology_names: Sequence[str] = (),
    agent_names: Sequence[str] = (),
    *,
    seeds: int = 3,
    minutes: float | None = None,
    env_steps: int | None = None,
    until_goal: bool = False,
    recipe: Recipe = "default",
    change: Callable[[Config], Config] = lambda config: config,
    look: Callable[[Config], Config] = lambda config: config,
) -> Plan:
    """Every topology with every agent that it can run, with the settings that the preset has for it.

    Args:
        env: preset, Gymnasium id or ``module:Id-v0``.
        topology_names: empty: the preset's.
        agent_names: empty: for each topology the preset's agent, or one that the topology can run.
        seeds: runs of each arm, with the seeds 1 … ``seeds``.
        minutes: training time of each run; None: no limit.
        env_steps: of each run; None: no limit. Without both limits the preset's hold.
        until_goal: a run also ends when it reaches the goal.
        recipe: whose settings an agent's name brings, where ``env`` is no preset.
        change: applies the user's own settings to every configuration.
        look: applies those of them that make another environment.

    Raises:
        ConfigError: an unknown name, a name that runs with none of the others, or no budget; names the flag.
    """
    ground = _ground(env)
    if not topology_names and not agent_names:
        raise ConfigError("give what to compare: --topologies a,b,c, or --agents x,y, or both")
    if seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, not {seeds}")
    for flag, value in (("--minutes", minutes), ("--env-steps", env_steps)):
        if value is not None and not value > 0:
            raise ConfigError(f"{flag} must be more than 0, not {value:g}")
    names = _each(topology_names) or [ground.topology]
    others = _each(agent_names)
    _check_names(names, others)
    wanted = _budget(ground, env, minutes, env_steps)
    facts = None if ground.preset else _facts(env, look(ground))
    if facts is not None and recipe == "default" and (size := default_image_size(facts)):
        shrinking = convert.override(ground, {"image_size": size})
        if look(shrinking).env.image_size == size:  # nobody has given another one
            ground, facts = shrinking, facts.shrunk(size)
    facts = None if facts is None else facts._replace(shrinks=False)
    arms = []
    left_out = {}
    goal = None
    for name, agent in [(name, agent) for name in names for agent in others or [""]]:
        if agent and not topologies.runs(name, agent):
            there = Arm(convert.override(ground, {"topology": name, "agent": agent}))
            left_out[there.label] = topologies.obstacle(there.config)
            continue
        if facts is None:
            config = presets.with_topology(ground, name, agent)
        else:
            steps = int(wanted["env_steps"])
            config = replace(unseen.with_names(name, agent, facts, recipe, steps), env=ground.env)
        alike, put_aside = _alike(config, ground)
        config = change(alike)
        goal = config.stop.stop_at_return
        config = convert.override(config, {**wanted, "stop_at_return": goal if until_goal else None})
        arm = Arm(replace(config, seed=1, name="", out=""), put_aside)
        if why := topologies.obstacle(config):
            left_out[arm.label] = why
        else:
            presets.check_installed(config)
            arms.append(replace(arm, config=validate(arm.config)))
    _check_all_there("--topologies", "topology", names, {arm.topology for arm in arms}, left_out)
    _check_all_there("--agents", "agent", others, {arm.agent for arm in arms}, left_out)
    if until_goal and goal is None:
        raise ConfigError(f"--until-goal: {env} has no return that counts as done; give one with --stop-at-return")
    return Plan(env, arms, range(1, seeds + 1), goal, left_out)


def _ground(env: str) -> Config:
    """The preset called ``env``, or the defaults with that environment."""
    if not env:
        raise ConfigError(f"give an environment: --env PRESET ({', '.join(presets.names())}), or --env ID")
    return presets.PRESETS[env].config if env in presets.PRESETS else Config(env=EnvConfig(env=env))


def _facts(env: str, look: Config) -> EnvFacts:
    """What is known of the environment, which is no preset's."""
    try:
        return env_facts(look, measure=False)
    except EnvError as error:
        raise EnvError(f"--env {env}{did_you_mean(env, presets.names())}: {error}") from error


def _each(words: Sequence[str]) -> list[str]:
    """The words of ``a,b c``, each once."""
    return list(dict.fromkeys(name for word in words for name in word.split(",") if name))


def _budget(ground: Config, env: str, minutes: float | None, env_steps: int | None) -> dict[str, Any]:
    if minutes is not None or env_steps is not None:
        return {"minutes": minutes or 0.0, "env_steps": env_steps or 0}
    if ground.stop.minutes or ground.stop.env_steps:
        return {"minutes": ground.stop.minutes, "env_steps": ground.stop.env_steps}
    near = "" if ground.preset else did_you_mean(env, presets.names())
    raise ConfigError(
        f"give the length of a run: --minutes M, --env-steps N or both; {env}{near} has no limit of its own"
    )


def _check_names(topology_names: Sequence[str], agent_names: Sequence[str]) -> None:
    known: tuple[tuple[str, Callable[[str], None], Sequence[str]], ...] = (
        ("--topologies", topologies.check_name, topology_names),
        ("--agents", agents.check_name, agent_names),
    )
    for flag, check, names in known:
        for name in names:
            try:
                check(name)
            except ConfigError as error:
                raise ConfigError(f"{flag}: {error}") from error


def _check_all_there(flag: str, what: str, names: Sequence[str], there: set[str], left_out: Mapping[str, str]) -> None:
    """Refuse a name that is in no pair."""
    for name in names:
        if name not in there:
            why = "; ".join(told(label, left_out[label]) for label in left_out if name in label.split(" · "))
            raise ConfigError(f"{flag}: {what} {name} cannot run with any of the others: {why}")


def told(label: str, why: str) -> str:
    """Why a pair is left out."""
    return f"{label}, which {why}"


def _alike(config: Config, ground: Config) -> tuple[Config, dict[str, Any]]:
    """``config`` with the shared settings of ``ground``, and the values that they replaced."""
    here, there = convert.flat(config), convert.flat(ground)
    different = {name: here[name] for name in EQUAL if here[name] != there[name]}
    return convert.override(config, {name: there[name] for name in different}), different


def default_out(plan: Plan) -> Path:
    """The default folder of a comparison: ``comparisons/cartpole``."""
    return Path("comparisons") / (re.sub(r"[^\w.-]+", "-", plan.env.rpartition(":")[2]).strip("-").lower() or "env")


def terms(plan: Plan) -> str:
    """The shared settings, in a line."""
    config = plan.config
    actors, stop = config.actor, config.stop
    limits = [f"{stop.minutes:g} min"] * bool(stop.minutes) + [f"{stop.env_steps:,} env steps"] * bool(stop.env_steps)
    until = f", or the goal of {plan.goal:g}" if stop.stop_at_return is not None else ""
    parts = [
        env_name(config),
        *([] if config.preset else [f"recipe {config.recipe}"]),
        f"{actors.actors} × {actors.envs_per_actor} environments",
        config.agent.network or as_flag("hidden", config.agent.hidden)[2:],
        f"{len(plan.seeds)} {'seeds' if len(plan.seeds) > 1 else 'seed'}",
        f"each run {' or '.join(limits)}{until}",
    ]
    if plan.goal is not None and not until:
        parts.append(f"goal {plan.goal:g}")
    return "  ·  ".join(parts)


def several_agents(plan: Plan) -> str:
    """A warning that agents differ between topologies; empty where all arms have one agent, or one topology."""
    agents = list(dict.fromkeys(arm.agent for arm in plan.arms))
    if len(agents) == 1 or len({arm.topology for arm in plan.arms}) == 1:
        return ""
    return f"agents differ between topologies ({', '.join(agents)}); give one with --agents to compare topologies alone"


def differences(plan: Plan) -> dict[str, list[Any]]:
    """Settings in which the arms differ: flat name -> a value for each arm, None where that arm does not read it.

    A setting that only some arms read is left out where it has its default.
    """
    each = [convert.flat(arm.config) for arm in plan.arms]
    idle, defaults = [unused(arm.config) for arm in plan.arms], convert.flat(Config())
    found = {}
    for name in each[0]:
        values = [None if name in nothing else flat[name] for flat, nothing in zip(each, idle, strict=True)]
        known = [value for value in values if value is not None]
        alike = all(value == known[0] for value in known)
        if name in ("topology", "agent") or not known or (alike and (None not in values or known[0] == defaults[name])):
            continue
        found[name] = values
    return found
