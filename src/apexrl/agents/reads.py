"""Settings that only some agents read: what the command shows for an agent, and what it refuses. Loads no PyTorch."""

from __future__ import annotations

from collections.abc import Iterable

from apexrl.agents.catalogue import AGENTS
from apexrl.errors import ConfigError

_VALUES = {"double", "dueling", "epsilon", "epsilon_alpha"}
_SWITCHES = {
    "noisy",
    "noisy_sigma",
    "munchausen",
    "munchausen_alpha",
    "munchausen_temperature",
    "munchausen_clip",
    "distribution",
    "quantiles",
    "quantile_samples",
    "cosines",
}
_CATEGORIES = {"atoms", "v_min", "v_max"}
_ACTOR_CRITIC = {"critic_hidden", "policy_learning_rate", "policy_period_updates"}
_TARGET = {"polyak", "target_period_updates"}
_SOFT = {"temperature", "initial_temperature", "temperature_learning_rate", "target_entropy"}
_NOISE = {"sigma", "sigma_alpha"}
_MEMORY = {"sequence_length", "sequence_stride", "burn_in", "recurrent_units", "rescaling_eps", "priority_eta"}

READS: dict[str, set[str]] = {
    "apexrl.agents.dqn:DQN": _VALUES | _SWITCHES | _CATEGORIES | _TARGET,
    "apexrl.agents.r2d2:R2D2": _VALUES | _MEMORY | _TARGET,
    "apexrl.agents.discrete_sac:DiscreteSAC": _ACTOR_CRITIC | _SOFT | _TARGET,
    "apexrl.agents.sac:SAC": _ACTOR_CRITIC | _SOFT | _TARGET,
    "apexrl.agents.crossq:CrossQ": _ACTOR_CRITIC | _SOFT,
    "apexrl.agents.ddpg:DDPG": _ACTOR_CRITIC | _NOISE | _TARGET | {"residual"},
    "apexrl.agents.td3:TD3": _ACTOR_CRITIC | _NOISE | _TARGET | {"target_noise", "target_noise_clip"},
    "apexrl.agents.d4pg:D4PG": _ACTOR_CRITIC | _NOISE | _TARGET | _CATEGORIES,
}
"""Where an agent is (``AgentInfo.where``) -> those that it reads."""

_SOME = set().union(*READS.values())


def unread(agent: str) -> set[str]:
    """Flat names of the settings that mean nothing to ``agent``. One of your own may read any."""
    return _SOME - READS.get(AGENTS[agent].where, _SOME) if agent in AGENTS else set()


def check_read(agent: str, given: Iterable[str]) -> None:
    """Refuse settings that somebody has ``given`` and that would change nothing.

    Raises:
        ConfigError: the message names the agents that read it.
    """
    idle = unread(agent)
    for name in given:
        if name in idle:
            others = ", ".join(other for other in AGENTS if name not in unread(other))
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} means nothing to agent {agent}: leave it out, or choose one of {others}")
