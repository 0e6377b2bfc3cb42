"""Which settings an agent reads: what the command shows for it, and what it refuses. Loads no PyTorch.

A name offers whatever its agent may come to read. A setting that needs another one (``atoms`` needs ``distribution``)
is refused where that keeps it from being read.
"""

from __future__ import annotations

from collections.abc import Iterable

from apexrl.agents.catalogue import AGENTS
from apexrl.config import AgentConfig, Config
from apexrl.config.convert import flat, known_settings
from apexrl.config.settings import as_flag, flag, names_of
from apexrl.errors import AgentError, ConfigError

READS = {name: names_of(info.reads) for name, info in AGENTS.items()}
"""Shipped agent -> the settings that it reads, some of them only with others."""

SOME = set().union(*READS.values())
"""What some agents read; all of them read the others."""

_COMMON = known_settings().keys() - SOME

_NEEDS = {name: setting.needs for name, (_, setting) in known_settings().items() if setting.needs}


def unread(agent: str) -> set[str]:
    """Settings that mean nothing to ``agent``, whatever its others are. One of your own may read any.

    A name that stands for a switch has it: ``c51`` reads no ``quantiles``.
    """
    if agent not in AGENTS:
        return set()
    info = AGENTS[agent]
    fixed = {switch: info.settings[switch] for switch in info.identity}
    never = {name for name, needs in _NEEDS.items() if needs.switch in fixed and not needs.met(fixed[needs.switch])}
    return (SOME - READS[agent]) | never


def idle(config: Config) -> dict[str, str]:
    """Settings that mean nothing with the others as they are -> the flag that keeps them so."""
    reads, values = READS.get(config.agent.agent, set()) | _COMMON, flat(config)
    return {
        name: as_flag(needs.switch, values[needs.switch]) if values[needs.switch] != "" else f"no {flag(needs.switch)}"
        for name, needs in _NEEDS.items()
        if {name, needs.switch} <= reads and not needs.met(values[needs.switch])
    }


def check_read(agent: str, given: Iterable[str]) -> None:
    """Refuse settings that somebody has ``given`` and that no configuration of ``agent`` reads.

    Raises:
        ConfigError: the message names the agents that do.
    """
    nothing = unread(agent)
    for name in given:
        if name in nothing:
            others = ", ".join(other for other in AGENTS if name not in unread(other))
            raise ConfigError(f"{flag(name)} means nothing to agent {agent}: leave it out, or choose one of {others}")


def check_in_use(config: Config, given: Iterable[str]) -> None:
    """Refuse settings that somebody has ``given`` and that another one keeps from being read.

    Raises:
        ConfigError: the message names the other.
    """
    nothing = idle(config)
    for name in given:
        if name in nothing:
            raise ConfigError(f"{flag(name)} means nothing with {nothing[name]}: leave it out, or change the other")


def check_evaluation(config: Config, prefix: str = "--eval-") -> None:
    """Refuse an evaluation that samples actions of an agent that draws none.

    Args:
        prefix: of the flags, for the message.

    Raises:
        ConfigError: the message says what to set instead.
    """
    settings, agent = config.evaluator, config.agent
    reads = READS.get(agent.agent, set())
    if settings.eval_actions != "sampled":
        return
    if "sigma" in reads:
        raise ConfigError(
            f"{prefix}actions sampled means nothing to agent {agent.agent}, whose policy is deterministic: leave it out"
        )
    if "epsilon" in reads and not (agent.noisy or settings.eval_epsilon):
        raise ConfigError(
            f"{prefix}actions sampled means nothing to agent {agent.agent}, whose actions are random by ε alone: say "
            f"how often with {prefix}epsilon, as in {prefix}epsilon 0.05"
        )


def check_gradient_steps(config: AgentConfig) -> None:
    """Refuse several gradient steps of one batch where nothing holds them to the policy that acted.

    Raises:
        AgentError: the message names the settings.
    """
    follows_policy = config.agent not in AGENTS or "surrogate" in READS[config.agent]
    if follows_policy and config.surrogate == "log_prob" and config.epochs * config.minibatches > 1:
        raise AgentError(
            f"--surrogate log_prob with --epochs {config.epochs} and --minibatches {config.minibatches}: from the "
            "second gradient step on the policy is not the one that acted, and A·log π has no ratio, no clip for it. "
            "Set --epochs 1 --minibatches 1, or choose an agent with --surrogate clipped (ppo, appo)"
        )
