"""Finds and makes environments of several agents, by the names that PettingZoo gives to what makes them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import gymnasium as gym

from apexrl.config import EnvConfig
from apexrl.config.agent_game_settings import OWN
from apexrl.envs.agent_rows import AgentRows, Shown
from apexrl.envs.lockstep import EnvCall
from apexrl.envs.played_agents import PlayedAgents
from apexrl.envs.players import MakePlayers
from apexrl.envs.seat_rows import SeatRows
from apexrl.envs.spaces import length_limit
from apexrl.envs.team import TeamEnv
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


def agent_rows(config: EnvConfig, rows: int, seed: int, call: EnvCall, players: MakePlayers) -> AgentRows:
    """So many environments whose agents act at the same time that they have at least ``rows`` agents to learn.

    Raises:
        EnvError: agents take turns, or those to be learned have different spaces; the own pool is to play one of other
            spaces; or a wrapper is asked for that they have not.
    """
    first, name = _first(config, "parallel"), str(config.env)
    learned = learned_agents(config, first.possible_agents)
    _check_players(config, first, learned)
    games = [first, *(make_game(config) for _ in range(-(-rows // len(learned)) - 1))]
    shows = config.show_agent, config.show_state
    show = [Shown(game, name, learned, *shows) for game in games]
    others = None
    if len(learned) < len(first.possible_agents):
        others = PlayedAgents(games, name, players(seed), *shows, length_limit(config))
    limits = config.max_episode_steps, length_limit(config)
    return AgentRows(games, name, learned, show, others, call, config.info_metrics, *limits)


def seat_rows(config: EnvConfig, rows: int, seed: int, call: EnvCall, players: MakePlayers) -> SeatRows:
    """``rows`` games whose agents take turns.

    Raises:
        EnvError: as ``agent_rows``.
    """
    first, name = _first(config, "turns"), str(config.env)
    learned = learned_agents(config, first.possible_agents)
    _check_players(config, first, learned)
    return SeatRows(
        [first, *(make_game(config) for _ in range(rows - 1))],
        name,
        learned,
        players(seed),
        config.show_agent,
        config.show_state,
        call,
        config.info_metrics,
        config.max_episode_steps,
        length_limit(config),
    )


def team_env(config: EnvConfig, **more: Any) -> TeamEnv:
    """One environment whose agents are one learner's.

    Raises:
        EnvError: they take turns, or have no discrete actions alike; a wrapper is asked for that they have not.
    """
    name = str(config.env)
    shows = config.show_agent, config.show_state, config.show_last_action
    return TeamEnv(_first(config, "parallel", **more), name, *shows)


def learned_agents(config: EnvConfig, agents: Sequence[str]) -> list[str]:
    """Those of ``agents`` that the run learns.

    Raises:
        EnvError: a name of ``learned_agents`` is none of theirs.
    """
    for name in config.learned_agents:
        if not any(fnmatchcase(agent, name) for agent in agents):
            raise EnvError(f"--learned-agents {name!r}: {config.env} has {', '.join(agents)}, and no such agent")
    if not config.learned_agents:
        return list(agents)
    return [agent for agent in agents if any(fnmatchcase(agent, name) for name in config.learned_agents)]


def _check_players(config: EnvConfig, game: Any, learned: Sequence[str]) -> None:
    """Whether policies of the run's own pool can play those whom they are to play.

    Raises:
        EnvError: one of these has other spaces than the agents that are learned; or a name of ``played_by`` is none of
            the agents'.
    """
    named = [entry.partition("=") for entry in config.played_by]
    for names, _, _ in named:
        if not any(fnmatchcase(agent, names) for agent in game.possible_agents):
            raise EnvError(
                f"--played-by '{names}=…': {config.env} has {', '.join(game.possible_agents)}, and no such agent"
            )
    for agent in game.possible_agents:
        runs = [run for names, _, run in named if fnmatchcase(agent, names)] or [OWN]
        spaces = game.observation_space, game.action_space
        if agent not in learned and OWN in runs and any(_form(of(agent)) != _form(of(learned[0])) for of in spaces):
            raise EnvError(
                f"--learned-agents: {agent} of {config.env} has other observations or actions than {learned[0]}, so "
                f"this run's own policies cannot play it; name a run whose policies do: --played-by '{agent}=RUN'"
            )


def _form(space: Any) -> Any:
    """What a network depends on of a space: all but the bounds of boxes."""
    if isinstance(space, gym.spaces.Dict):
        return {name: _form(part) for name, part in space.items()}
    return (space.shape, space.dtype) if isinstance(space, gym.spaces.Box) else space


def _first(config: EnvConfig, kind: Kind, **more: Any) -> Any:
    name = str(config.env)
    _refuse_wrappers(config, name)
    game = make_game(config, **more)
    if kind_of(game) != kind:
        has = "take turns" if kind == "parallel" else "act at the same time"
        raise EnvError(
            f"the agents of {name} {has}: what makes such an environment is to be called "
            f"{'env' if kind == 'parallel' else 'parallel_env'}"
        )
    return game


def _refuse_wrappers(config: EnvConfig, name: str) -> None:
    asked = {
        "--atari": config.atari,
        "--last-action-reward": config.last_action_reward,
        "--mask-in-info": config.mask_in_info,  # masks are the key action_mask of an agent's observation
    }
    if any(asked.values()):
        raise EnvError(f"{name} has several agents: leave out {' and '.join(what for what, on in asked.items() if on)}")
