"""Finds and makes environments of several agents, by the names that PettingZoo gives to what makes them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal

from apexrl.config import EnvConfig
from apexrl.envs.agent_rows import AgentRows, Shown
from apexrl.envs.lockstep import EnvCall
from apexrl.envs.spaces import length_limit
from apexrl.errors import EnvError

Kind = Literal["parallel", "turns"]


def find_maker(name: str) -> Callable[..., Any]:
    """What makes it.

    Raises:
        ModuleNotFoundError: there is no such module; its ``name`` says which.
        EnvError: it has no such function.
    """
    module, _, function = name.rpartition(":")
    found = getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise EnvError(f"environment {name}: module {module} has no function {function!r}")
    made: Callable[..., Any] = found
    return made


def make_game(config: EnvConfig, **more: Any) -> Any:
    """One environment of several agents.

    Raises:
        ModuleNotFoundError, EnvError: as ``find_maker``; or what it returns is no such environment; whatever it raises.
    """
    assert isinstance(config.env, str)
    made = find_maker(config.env)(**{**config.env_kwargs, **more})
    if not (getattr(made, "possible_agents", None) and hasattr(made, "observation_space") and hasattr(made, "step")):
        raise EnvError(
            f"environment {config.env} is a {type(made).__name__} and not one of PettingZoo's: it must have "
            "possible_agents (at least one), observation_space(agent), action_space(agent), reset() and step()"
        )
    return made


def kind_of(game: Any) -> Kind:
    """Whether its agents act at the same time, or take turns (PettingZoo's AEC)."""
    return "turns" if hasattr(game, "last") else "parallel"


def agent_rows(config: EnvConfig, rows: int, call: EnvCall) -> AgentRows:
    """So many environments that they have at least ``rows`` agents.

    Raises:
        EnvError: agents take turns, or have different spaces; or a wrapper is asked for that it has not.
    """
    name = str(config.env)
    _refuse_wrappers(config, name)
    first = make_game(config)
    if kind_of(first) == "turns":
        raise EnvError(
            f"the agents of {name} take turns, and nobody plays the others: name its parallel form (parallel_env), if "
            "it has one"
        )
    games = [first, *(make_game(config) for _ in range(-(-rows // len(first.possible_agents)) - 1))]
    show = [Shown(game, name, game.possible_agents, config.show_agent, config.show_state) for game in games]
    return AgentRows(games, name, show, call, config.info_metrics, config.max_episode_steps, length_limit(config))


def _refuse_wrappers(config: EnvConfig, name: str) -> None:
    asked = {
        "--atari": config.atari,
        "--last-action-reward": config.last_action_reward,
        "--mask-in-info": config.mask_in_info,  # masks are the key action_mask of an agent's observation
    }
    if any(asked.values()):
        raise EnvError(f"{name} has several agents: leave out {' and '.join(what for what, on in asked.items() if on)}")
