"""Agents by name. Importing this package loads no PyTorch; ``agent_class`` does."""

from __future__ import annotations

import difflib
import importlib
from typing import Any, NamedTuple

from apexrl.errors import AgentError, ConfigError


class AgentInfo(NamedTuple):
    """One shipped agent."""

    where: str  # "module:Class"
    description: str
    citation: str


AGENTS: dict[str, AgentInfo] = {
    "dqn": AgentInfo(
        "apexrl.agents.dqn:DQN",
        "double dueling n-step Q-learning with prioritized replay, discrete actions",
        "Horgan et al. 2018, Distributed Prioritized Experience Replay, arXiv 1803.00933",
    ),
}

METHODS = ("act", "priorities", "prepare", "update", "weights", "load", "state_dict", "load_state_dict", "step_spec")


def agent_class(name: str) -> type[Any]:
    """The class that ``name`` means: a shipped agent, or ``package.module:Class`` of your own.

    Constructed as ``AgentClass(spec: EnvSpec, config: AgentConfig, device: str, seed: int)``.

    Raises:
        ConfigError: no such agent, module or class.
        AgentError: the class lacks methods of ``protocols.Agent``.
    """
    info = AGENTS.get(name)
    if info is None and ":" not in name:
        near = difflib.get_close_matches(name, AGENTS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"there is no agent {name!r}.{hint} Shipped: {', '.join(AGENTS)}; one of your own is 'package.module:Class'"
        )
    module_name, _, class_name = (info.where if info else name).partition(":")
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


def describe() -> dict[str, tuple[str, str]]:
    """Shipped agents: name -> (one line, citation); loads nothing."""
    return {name: (info.description, info.citation) for name, info in AGENTS.items()}
