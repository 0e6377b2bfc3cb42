"""Agents by name. Importing this package loads no PyTorch; ``agent_class`` does."""

from __future__ import annotations

import importlib
from typing import Any

from apexrl.agents.catalogue import AGENTS, AgentInfo
from apexrl.agents.reads import check_read, unread
from apexrl.config import Config
from apexrl.errors import AgentError, ConfigError
from apexrl.settings import did_you_mean, override

__all__ = ["AGENTS", "AgentInfo", "agent_class", "check_name", "check_read", "unread", "with_agent"]

METHODS = ("act", "priorities", "prepare", "update", "weights", "load", "state_dict", "load_state_dict", "step_spec")


def check_name(name: str) -> None:
    """Refuse a name that is neither a shipped agent nor ``package.module:Class``.

    Raises:
        ConfigError: the message names the nearest.
    """
    if name not in AGENTS and ":" not in name:
        raise ConfigError(
            f"there is no agent {name!r}{did_you_mean(name, AGENTS)}. Shipped: {', '.join(AGENTS)}; "
            "one of your own is 'package.module:Class'"
        )


def with_agent(config: Config, name: str) -> Config:
    """``config`` with another agent, and the settings that its name stands for. One of your own changes no others.

    Raises:
        ConfigError: there is no agent of that name.
    """
    check_name(name)
    settings = AGENTS[name].settings if name in AGENTS else {}
    return override(config, {**settings, "agent": name})


def agent_class(name: str) -> type[Any]:
    """The class that ``name`` means: a shipped agent, or ``package.module:Class`` of your own.

    Constructed as ``AgentClass(spec: EnvSpec, config: AgentConfig, device: str, seed: int)``.

    Raises:
        ConfigError: no such agent, module or class.
        AgentError: the class lacks methods of ``protocols.Agent``.
    """
    check_name(name)
    module_name, _, class_name = (AGENTS[name].where if name in AGENTS else name).partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ConfigError(f"agent {name!r} needs PyTorch; run: pip install 'apexrl[train]'") from error
        raise ConfigError(
            f"agent {name!r}: there is no module {error.name!r}; it must be installed or in the current folder"
        ) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise ConfigError(f"agent {name!r}: module {module_name} has no class {class_name!r}")
    missing = [method for method in METHODS if not hasattr(found, method)]
    if missing:
        raise AgentError(
            f"agent {name!r}: {class_name} lacks {', '.join(missing)}; see apexrl.protocols.Agent for what they do"
        )
    return found
