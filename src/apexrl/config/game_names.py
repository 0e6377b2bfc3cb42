"""What the name of an environment says of its agents: PettingZoo has two names for what makes one."""

from __future__ import annotations

from typing import Final

from apexrl.config.agent_game_settings import AgentGameSettings

MAKERS: Final = ("parallel_env", "env")
"""Functions of a module: of an environment whose agents act at the same time, and of one where they take turns."""


def is_game(name: object) -> bool:
    """Whether an environment's name is that of several agents: ``package.module:parallel_env`` or ``…:env``."""
    return isinstance(name, str) and ":" in name and name.rpartition(":")[2] in MAKERS


def takes_turns(name: object) -> bool:
    """Whether its agents take turns: ``package.module:env``."""
    return is_game(name) and str(name).endswith(":env")


def has_opponents(config: AgentGameSettings, name: object) -> bool:
    """Whether some agents are played by policies of a pool, and the run keeps one."""
    return is_game(name) and not is_team(config, name) and (takes_turns(name) or bool(config.learned_agents))


def is_team(config: AgentGameSettings, name: object) -> bool:
    """Whether all agents of an environment are learned as one."""
    return config.team and is_game(name)
