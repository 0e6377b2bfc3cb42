"""Settings that only some agents read: what the command shows for an agent, and what it refuses. Loads no PyTorch.

A setting may depend on another one (``atoms`` on ``distribution``). A name offers whatever its agent may come to read;
given where another setting keeps it from being read, it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from apexrl.agents.catalogue import AGENTS
from apexrl.config import Config
from apexrl.config.convert import as_flag, flat
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
_SOFT = {"temperature", "initial_temperature", "temperature_learning_rate", "target_entropy", "huber"}
_NOISE = {"sigma", "sigma_alpha"}
_MEMORY = {"sequence_length", "sequence_stride", "burn_in", "recurrent_units", "rescaling_eps", "priority_eta"}
_UNROLLS = {
    "unroll_length",
    "correction",
    "gae_lambda",
    "rho_clip",
    "c_clip",
    "surrogate",
    "clip_ratio",
    "probability_floor",
    "value_coefficient",
    "value_clip",
    "separate_values",
    "entropy_coefficient",
    "normalize_advantages",
    "summed_loss",
    "epochs",
    "minibatches",
    "recurrent",
    "recurrent_units",
    "anneal",
}
# Unrolls are queued, not kept to be drawn again; and their policy is random by itself.
_KEPT = {
    "n_step",
    "capacity",
    "alpha",
    "beta",
    "priority_eps",
    "remover",
    "remover_alpha",
    "trim_every",
    "min_size",
    "samples_per_insert",
    "insert_band",
    "random_start",
}
_OPTIMIZER = {"optimizer", "optimizer_eps", "first_moment_decay", "rmsprop_decay", "centered", "momentum"}

READS: dict[str, set[str]] = {
    "apexrl.agents.dqn:DQN": _VALUES | _SWITCHES | _CATEGORIES | _TARGET | {"huber"},
    "apexrl.agents.r2d2:R2D2": _VALUES | _MEMORY | _TARGET | {"huber"},
    "apexrl.agents.discrete_sac:DiscreteSAC": _ACTOR_CRITIC | _SOFT | _TARGET,
    "apexrl.agents.sac:SAC": _ACTOR_CRITIC | _SOFT | _TARGET,
    "apexrl.agents.crossq:CrossQ": _ACTOR_CRITIC | _SOFT,
    "apexrl.agents.ddpg:DDPG": _ACTOR_CRITIC | _NOISE | _TARGET | {"residual", "huber"},
    "apexrl.agents.td3:TD3": _ACTOR_CRITIC | _NOISE | _TARGET | {"target_noise", "target_noise_clip", "huber"},
    "apexrl.agents.d4pg:D4PG": _ACTOR_CRITIC | _NOISE | _TARGET | _CATEGORIES,
    "apexrl.agents.actor_critic:ActorCritic": _UNROLLS,
}
"""Where an agent is (``AgentInfo.where``) -> those that it reads, some of them only with others."""
READS = {where: names | _OPTIMIZER | (set() if names is _UNROLLS else _KEPT) for where, names in READS.items()}

_SOME = set().union(*READS.values())


class _Needs(NamedTuple):
    """A switch must have one of some values, or none of others, in an agent that reads the switch."""

    switch: str
    values: tuple[Any, ...] = ()
    unless: tuple[Any, ...] = ()

    def met(self, value: Any) -> bool:
        return value not in self.unless if self.unless else value in self.values


_NEEDS: dict[str, _Needs] = {
    "noisy_sigma": _Needs("noisy", (True,)),
    **dict.fromkeys(("munchausen_alpha", "munchausen_temperature", "munchausen_clip"), _Needs("munchausen", (True,))),
    **dict.fromkeys(_CATEGORIES, _Needs("distribution", ("categorical",))),
    "quantiles": _Needs("distribution", ("quantile",)),
    **dict.fromkeys(("quantile_samples", "cosines"), _Needs("distribution", ("implicit_quantile",))),
    "huber": _Needs("distribution", ("expected", "quantile", "implicit_quantile")),
    "target_period_updates": _Needs("polyak", (0.0,)),
    **dict.fromkeys(
        ("initial_temperature", "temperature_learning_rate", "target_entropy"), _Needs("temperature", (0.0,))
    ),
    "first_moment_decay": _Needs("optimizer", ("adam",)),
    "optimizer_eps": _Needs("optimizer", ("adam", "rmsprop", "adagrad")),
    "rmsprop_decay": _Needs("optimizer", ("rmsprop",)),
    "centered": _Needs("optimizer", ("rmsprop",)),
    "momentum": _Needs("optimizer", ("rmsprop", "sgd")),
    **dict.fromkeys(("rho_clip", "c_clip"), _Needs("correction", ("vtrace",))),
    "clip_ratio": _Needs("surrogate", ("clipped",)),
    "probability_floor": _Needs("surrogate", ("log_prob",)),
    "recurrent_units": _Needs("recurrent", (True,)),
    "separate_values": _Needs("recurrent", (False,)),
    "target_noise_clip": _Needs("target_noise", unless=(0.0,)),
    **dict.fromkeys(("beta", "priority_eps"), _Needs("alpha", unless=(0.0,))),
    "remover_alpha": _Needs("remover", ("proportional",)),
    "insert_band": _Needs("samples_per_insert", unless=(0.0,)),
    "epsilon_alpha": _Needs("epsilon", unless=(0.0, 1.0)),  # whose powers are all the same
    "sigma_alpha": _Needs("sigma", unless=(0.0, 1.0)),
}


def unread(agent: str) -> set[str]:
    """Flat names of the settings that mean nothing to ``agent``, whatever its others are. One of your own may read any.

    A name that stands for a switch has it: ``c51`` reads no ``quantiles``.
    """
    if agent not in AGENTS:
        return set()
    info = AGENTS[agent]
    fixed = {switch: info.settings[switch] for switch in info.identity}
    never = {name for name, needs in _NEEDS.items() if needs.switch in fixed and not needs.met(fixed[needs.switch])}
    return (_SOME - READS[info.where]) | never


def idle(config: Config) -> dict[str, str]:
    """Those that mean nothing with the others as they are -> the flag that keeps them so."""
    agent = config.agent.agent
    if agent not in AGENTS:
        return {}
    reads, values = READS[AGENTS[agent].where], flat(config)
    return {
        name: as_flag(needs.switch, values[needs.switch])
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
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} means nothing to agent {agent}: leave it out, or choose one of {others}")


def check_in_use(config: Config, given: Iterable[str]) -> None:
    """Refuse settings that somebody has ``given`` and that another one keeps from being read.

    Raises:
        ConfigError: the message names the other.
    """
    nothing = idle(config)
    for name in given:
        if name in nothing:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} means nothing with {nothing[name]}: leave it out, or change the other")
