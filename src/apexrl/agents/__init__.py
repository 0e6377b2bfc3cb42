"""Agents by name. Importing this package loads no PyTorch; ``agent_class`` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apexrl.agents.agent_info import AgentInfo
from apexrl.agents.catalogue import AGENTS
from apexrl.agents.setting_relevance import (
    check_evaluation,
    check_gradient_steps,
    check_in_use,
    check_read,
    unread,
)
from apexrl.config import AgentConfig, Config
from apexrl.config.convert import flat, override
from apexrl.config.outside import imported, installed, ship
from apexrl.config.settings import as_flag, did_you_mean
from apexrl.errors import AgentError, ConfigError
from apexrl.spec import Field

__all__ = [
    "AGENTS",
    "AgentInfo",
    "agent_class",
    "check_evaluation",
    "check_gradient_steps",
    "check_identity",
    "check_in_use",
    "check_name",
    "check_read",
    "recorded",
    "unread",
    "with_agent",
]

ship("agents", AGENTS)

METHODS = ("act", "update", "weights", "load", "state_dict", "load_state_dict")


def check_name(name: str) -> None:
    """Refuse a name that is not of a shipped agent, nor of an installed package's, nor ``package.module:Class``.

    Raises:
        ConfigError: the message names the nearest.
    """
    known = [*AGENTS, *installed("agents")]
    if name in known:
        return
    if name == "auto":
        raise ConfigError("agent auto is for a run without a preset, a file or a Config, which have an agent")
    if ":" not in name:
        raise ConfigError(
            f"there is no agent {name!r}{did_you_mean(name, known)}. Known: {', '.join(known)}; "
            "one of your own is 'package.module:Class'"
        )
    module, _, cls = name.partition(":")
    if not (cls.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"--agent {name!r} is no 'package.module:Class', as one of your own is written")


def with_agent(
    config: Config,
    name: str,
    ground: Config | None = None,
    tuned: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """``config`` with another agent, and the settings that its name stands for. One of your own changes no others.

    First whatever the name before stood for goes back to what ``ground`` has, so that nothing of it is left behind.

    Args:
        config: what to change.
        name: of the agent.
        ground: a preset's settings, whoever the agent is; None: the defaults.
        tuned: agent -> flat settings that a preset has for it beyond those of its name.

    Raises:
        ConfigError: there is no agent of that name.
    """
    check_name(name)
    if name not in AGENTS:
        kept = config.agent.agent_settings if name == config.agent.agent else {}
        return override(config, {"agent": name, "agent_settings": kept})
    before, tuned = config.agent.agent, tuned or {}
    own = flat(ground or Config())
    brought = (*(AGENTS[before].settings if before in AGENTS else ()), *tuned.get(before, ()))
    back = {key: own[key] for key in brought}
    wanted = {**AGENTS[name].settings, **tuned.get(name, {}), "agent": name, "agent_settings": {}}
    return override(config, {**back, **wanted})


def check_identity(config: AgentConfig) -> None:
    """Refuse settings with which a shipped agent would be another one: ``rainbow`` without noisy layers.

    What a name does not stand for may be added to it: ``dqn`` with ``double``.

    Raises:
        ConfigError: the message names the setting, and the agent that it makes, if one of the shipped is.
    """
    if config.agent not in AGENTS:
        return
    info = AGENTS[config.agent]
    if "noisy" in info.identity and config.noisy and not config.noisy_sigma > 0.0:
        raise ConfigError(
            f"agent {config.agent} explores by noise, and {as_flag('noisy_sigma', config.noisy_sigma)} leaves none: "
            "--noisy-sigma must be positive"
        )
    for name in info.identity:
        stands, has = info.settings[name], getattr(config, name)
        if has == stands or (isinstance(has, float) and has):
            continue
        raise ConfigError(
            f"agent {config.agent} stands for {as_flag(name, stands)}, and this configuration has "
            f"{as_flag(name, has)}: choose {_made_of(config)}. (A name brings its settings with --agent "
            f"{config.agent} or apexrl.train(..., agent={config.agent!r}), not as AgentConfig(agent={config.agent!r}).)"
        )


def _made_of(config: AgentConfig) -> str:
    """The agent of the same class that these switches make, in words."""
    same = {name: info for name, info in AGENTS.items() if info.where == AGENTS[config.agent].where}
    switches = {switch for info in same.values() for switch in info.identity}
    made = [name for name, info in same.items() if all(info.settings[key] == getattr(config, key) for key in switches)]
    return made[0] if made else f"{next(iter(same))}, to which switches can be added"


def recorded(agent: Any) -> dict[str, Field]:
    """The extra fields that an agent records with every step; none where it does not say."""
    return dict(getattr(agent, "step_spec", {}))


def agent_class(name: str) -> type[Any]:
    """The class that ``name`` means: a shipped agent, one of an installed package, or ``package.module:Class``.

    Constructed as ``AgentClass(spec: EnvSpec, config: AgentConfig, device: str, seed: int)``.

    Raises:
        ConfigError: no such agent, module or class.
        AgentError: the class lacks methods of ``protocols.Agent``.
    """
    check_name(name)
    where = AGENTS[name].where if name in AGENTS else installed("agents")[name].value if ":" not in name else name
    module_name, _, class_name = where.partition(":")
    found = imported(f"agent {name!r}", where)
    if not isinstance(found, type):
        raise ConfigError(f"agent {name!r}: module {module_name} has no class {class_name!r}")
    missing = [method for method in METHODS if not hasattr(found, method)]
    if missing:
        raise AgentError(
            f"agent {name!r}: {class_name} lacks {', '.join(missing)}; see apexrl.protocols.Agent for what they do"
        )
    return found
