"""What a run without a preset starts from: an agent, a topology, and the settings that its recipe has for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from apexrl import agents, presets, topologies
from apexrl.agents import AGENTS
from apexrl.agents.default_settings import default_settings
from apexrl.agents.env_facts import EnvFacts
from apexrl.agents.paper_settings import paper_settings
from apexrl.config import Config
from apexrl.config.agent_game_settings import AgentGameSettings
from apexrl.config.convert import check_values, flat, override
from apexrl.config.settings import as_flag
from apexrl.errors import ConfigError
from apexrl.presets.choice import AUTO, choose
from apexrl.shared.usable_cores import usable_cores
from apexrl.spec import ActionSpec, EnvSpec, Field

Recipe = Literal["none", "default", "paper"]

LOOKED_AT = ("env", "env_kwargs", "atari", "stack", "image_size", "reward_clip", "last_action_reward",
             "max_episode_steps", "mask_in_info", "max_sequence_length", "cut_long_sequences",
             *AgentGameSettings.__dataclass_fields__,
             "env_timeout", "stall_timeout", "serial", "seed", "env_steps", "memory", "learners")  # fmt: skip
"""Settings that count before an agent is chosen."""


class Start(NamedTuple):
    """What a run starts from, and what to say of it; empty: nothing was chosen."""

    config: Config
    said: str = ""


def start(look: Config, agent: str, topology: str, recipe: Recipe, given: Collection[str] = ()) -> Start:
    """What a run without a preset starts from; whatever somebody has given goes on top.

    Args:
        look: a configuration with the settings of ``LOOKED_AT``; the others do not count.
        agent: its name; empty or ``auto``: one that suits the environment.
        topology: its name; empty: one that suits agent and environment.
        recipe: whose settings the agent's name brings.
        given: flat names of all settings that somebody gave, and "redis" where other hosts may join.

    Raises:
        ConfigError: a name or a value that there is not.
        AgentError: no agent of the topology takes the environment's actions, as their bounds are infinite, or none
            takes them, as one is not below the other.
        EnvError: the environment cannot be made.
        SpecError: one of its spaces is not supported.
    """
    agent = agent or AUTO
    check_values(look)
    if agent not in (*AGENTS, AUTO):  # one of your own, with settings of its own
        if recipe == "paper":
            raise ConfigError(f"--recipe paper: nothing is known of a paper of agent {agent}, which is your own")
        return Start(presets.with_names(Config(), topology, agent))
    if topology:
        topologies.check_name(topology)
        topologies.check_agent(topology, agent)
    from apexrl.launch.env_look import env_facts

    facts = env_facts(look, measure=agent == AUTO)
    if not {"image_size", "dataset"}.isdisjoint(given):
        facts = facts._replace(shrinks=False)  # somebody has said how large images are, or those of a dataset are
    if agent == AUTO:
        facts.spec.action.check_bounds("every agent", needed=False)
    cores = usable_cores()
    chosen = choose(facts, cores, agent, topology, given)
    if agent == AUTO and not chosen.why:  # the topology runs no agent for such actions
        facts.spec.action.check_bounds(f"topology {topology or chosen.topology}")
    env_steps, memory, learners = _aims(look)
    learners += "redis" in given  # of a host that may come
    config = with_recipe(chosen.agent, chosen.topology, facts, recipe, env_steps, memory, learners)
    size = config.env.image_size
    whole = "--image-size 0 leaves them as they are"
    said = [f"sides of images that have more than {size} pixels are shrunk to {size}. {whole}"] if size else []
    if str(look.env.env).startswith("ALE/") and not (look.env.env_kwargs.get("obs_type") or "atari" in given):
        said.append("papers play Atari's games with --atari --stack 4 --reward-clip 1")
    if agent == AUTO and chosen.why:
        why = f"--agent auto: {chosen.agent} in topology {chosen.topology}, for {chosen.why}"
        said.append(f"{why}. --agent and --topology choose otherwise")
    elif recipe == "paper" and not env_steps:
        said.append(_left_out(agent, facts))
    return Start(config, "\n".join(filter(None, said)))


def switched(config: Config, agent: str, topology: str, look: Config | None = None) -> Config:
    """A run's own configuration with another agent or topology: what differs from its recipe stays as it is.

    Args:
        config: without a preset, and with a recipe.
        agent: another one; empty: one that the topology runs, its own if it does.
        topology: another one; empty: its own.
        look: has the environment to look at, if that is another.
    """
    from apexrl.launch.env_look import env_facts

    named = presets.with_names(config, topology, agent)
    names = config.agent.agent, named.agent.agent
    if not set(names) <= AGENTS.keys() or (names[0] == names[1] and config.topology == named.topology):
        return named
    facts = env_facts(look or config, measure=False)._replace(shrinks=False)  # its images stay as large as they are
    aims = _aims(config)
    before = flat(with_recipe(names[0], config.topology, facts, config.recipe, *aims))
    own = {name: value for name, value in flat(config).items() if value != before[name]}
    return override(with_recipe(names[1], named.topology, facts, config.recipe, *aims), own)


def assumed_start(agent: str, topology: str, recipe: Recipe) -> Config:
    """What a run starts from where no environment is at hand, as for ``--help``: of vectors, with few actions."""
    named = presets.with_names(Config(), topology, "" if agent == AUTO else agent)
    if named.agent.agent not in AGENTS:
        return named
    return with_recipe(named.agent.agent, named.topology, assumed_facts(named.agent.agent), recipe)


def default_topology(agent: str) -> str:
    """The topology of shipped ``agent`` where neither a topology nor many cores are given."""
    return choose(assumed_facts(agent), 1, agent, "", ()).topology


def assumed_facts(agent: str) -> EnvFacts:
    """Of an environment of vectors, with actions such as shipped ``agent`` needs."""
    ones = np.ones(2, np.float32)
    box = ActionSpec((2,), "float32", low=-ones, high=ones)
    action = ActionSpec(n=4) if "Discrete" in AGENTS[agent].needs else box
    return EnvFacts(EnvSpec({"observation": Field((8,), "float32")}, action))


def with_names(topology: str, agent: str, facts: EnvFacts, recipe: Recipe, env_steps: int = 0) -> Config:
    """What a run in ``topology`` starts from; without an agent's name, with one that suits the environment."""
    if agent and agent not in AGENTS:
        return presets.with_names(Config(), topology, agent)
    agent = agent or choose(facts, 1, AUTO, topology, ()).agent
    topologies.check_agent(topology, agent)
    return with_recipe(agent, topology, facts, recipe, env_steps)


def _aims(config: Config) -> tuple[int, str, int]:
    """What else defaults depend on."""
    return config.stop.schedule_env_steps or config.stop.env_steps, config.agent.memory, config.wiring.learners


def with_recipe(
    agent: str,
    topology: str,
    facts: EnvFacts,
    recipe: Recipe,
    env_steps: int = 0,
    memory: str = "none",
    learners: int = 1,
) -> Config:
    """The defaults, the settings that the names of ``agent`` and ``topology`` stand for, and those of the recipe."""
    config = replace(agents.with_agent(Config(), agent), topology=topology, recipe=recipe)
    if recipe == "default":
        config = override(config, default_settings(agent, topology, facts, memory != "none", env_steps, learners))
    elif recipe == "paper":
        config = override(config, paper_settings(agent, facts, env_steps))
    if k := len(facts.spec.agents):  # rows are agents, of whole environments
        config = override(config, {"envs_per_actor": -(-config.actor.envs_per_actor // k) * k})
    return config


def _left_out(agent: str, facts: EnvFacts) -> str:
    """What a paper changes until a run's end, where nobody knows that."""
    without, whole = paper_settings(agent, facts), paper_settings(agent, facts, env_steps=1)
    left_out = " ".join(as_flag(name, value) for name, value in whole.items() if name not in without)
    return f"--recipe paper leaves out {left_out}, which needs --env-steps" if left_out else ""
