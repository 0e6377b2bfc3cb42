"""``--agent auto``: an agent and a topology, from an environment's actions, the time of a step, and the cores."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from apexrl import agents, topologies
from apexrl.agents import AGENTS
from apexrl.agents.env_facts import EnvFacts
from apexrl.config.settings import flag
from apexrl.spec import ActionSpec

AUTO = "auto"
"""In place of an agent's name."""

FAST_STEP_SECONDS = 0.002
"""An environment whose step takes less is fast: a policy gradient gets more from many steps than a replay from few.

Not so where observations are categories: what a replay has seen once in each it draws again and again, and Taxi is
solved within 110,000 steps, where a policy gradient after 370,000 has not delivered once. Several choices at once are
another matter: a replay's agent learns the value of every combination."""

_PLACED = {"listen": ("seed", "ga3c"), "redis": ("apex", "impala"), "ray": ("apex", "impala", "gorila")}
"""Flags that place a run on other machines -> topologies that can be placed so."""

_MANY_CORES = 8  # from here on one process may choose the actions of all others


class Choice(NamedTuple):
    """An agent, a topology, and why."""

    agent: str
    topology: str
    why: str


def choose(facts: EnvFacts, cores: int, agent: str, topology: str, given: Collection[str]) -> Choice:
    """What suits an environment, and reads what somebody has given.

    Args:
        cores: that this process may use.
        agent: the only one to think of; ``AUTO``: any.
        topology: the same; empty: any.
        given: flat names of the settings that somebody gave, and flags such as ``redis``.
    """
    pairs = list(_pairs(facts, cores, agent, topology, given))
    if not pairs:  # validation says why they do not go together
        return Choice(topologies.info(topology).agent if agent == AUTO else agent, topology or "apex", "")
    best = pairs[0]
    found = next((pair for pair in pairs if not _in_vain(*pair, given)), best)
    seen = "observations of categories alone, " * facts.categorical
    reasons = [f"{facts.action_words}, {seen}{_speed(facts)}", f"{cores} core{'s' if cores != 1 else ''}"]
    if topology:
        reasons.append(f"--topology {topology}")
    if found != best and (needs := _in_vain(*best, given)):
        reasons.append(f"{best[0]} in {best[1]} would not read {' '.join(flag(name) for name in needs)}")
    return Choice(*found, "; ".join(reasons))


def _pairs(facts: EnvFacts, cores: int, agent: str, topology: str, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """Agents with topologies that run them, the best first."""
    names = [agent] if agent != AUTO else _agents(facts, topology)
    placed = [_PLACED[flag] for flag in given if flag in _PLACED]
    for name in names:
        for other in [topology] if topology else _topologies(name, facts, cores):
            if topologies.runs(other, name) and (topology or all(other in able for able in placed)):
                yield name, other


def _agents(facts: EnvFacts, topology: str) -> list[str]:
    """Agents for its actions: that of the topology, then those for such an environment, then all others."""
    hybrid = facts.spec.action.hybrid
    box = facts.spec.action.box or hybrid
    replays, unrolls = ("sac" if box else "dueling_dqn"), "ppo"
    several = len(facts.spec.action.choices) > 1
    many_steps = _fast(facts) and (box or several or not facts.categorical)
    first = [unrolls, replays] if many_steps else [replays, unrolls]
    own = [topologies.info(topology).agent] if topology else []
    if topology == "offline":
        own = ["iql" if box else "discrete_cql"]
    named = [*own, *first, *AGENTS] if topology else [*first, *AGENTS]
    return [name for name in dict.fromkeys(named) if _acts(name, facts.spec.action)]


def _topologies(agent: str, facts: EnvFacts, cores: int) -> list[str]:
    """Topologies, that which suits the agent here first."""
    if AGENTS[agent].offline:
        return ["offline"]  # with actors only where somebody says so
    if AGENTS[agent].item != "unroll":
        best = "apex"
    else:
        best = "sample_factory" if cores >= _MANY_CORES and facts.image_side else "impala"
    return [best, *(name for name in topologies.TOPOLOGIES if name != best)]


def _acts(agent: str, action: ActionSpec) -> bool:
    """Whether it takes such actions. Agents of unrolls alone need no bounds."""
    needs = AGENTS[agent].needs
    if action.hybrid or action.box:
        return ("Tuple" if action.hybrid else "Box") in needs and (action.bounded or AGENTS[agent].item == "unroll")
    return "Discrete" in needs


def _in_vain(agent: str, topology: str, given: Collection[str]) -> list[str]:
    """Settings of ``given`` that this pair does not read."""
    nothing = agents.unread(agent) | topologies.unread(topology)
    return [name for name in given if name in nothing]


def _fast(facts: EnvFacts) -> bool:
    return facts.step_seconds is not None and facts.step_seconds < FAST_STEP_SECONDS


def _speed(facts: EnvFacts) -> str:
    if facts.step_seconds is None:
        return "a step of unknown time"
    return f"a step of {1000 * facts.step_seconds:.3g} ms ({'fast' if _fast(facts) else 'slow'})"
