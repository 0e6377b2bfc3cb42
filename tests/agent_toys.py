"""Tiny environments of several agents in PettingZoo's convention, without PettingZoo."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Corridors:
    """Each agent walks a corridor of its own: action 1 goes on, 0 stays. ``lengths`` says how long each is.

    The reward is 1 a step forward; who is at the end has terminated. After ``limit`` steps the others are truncated.
    ``late`` agents appear behind the step of that number. An observation is [position, length, agent's number, moves].
    """

    def __init__(self, lengths: dict[str, int], limit: int = 9, late: dict[str, int] | None = None) -> None:
        self.possible_agents = list(lengths)
        self.agents: list[str] = []
        self._lengths, self._limit, self._late = lengths, limit, late or {}
        self.state_space = gym.spaces.Box(-np.inf, np.inf, (len(lengths),), np.float32)

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self._time, self._at = 0, dict.fromkeys(self.possible_agents, 0)
        self.agents = [agent for agent in self.possible_agents if agent not in self._late]
        return {agent: self._seen(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents), (actions, self.agents)
        self._time += 1
        for agent, action in actions.items():
            self._at[agent] += int(action)
        ends = {agent: self._at[agent] >= self._lengths[agent] for agent in actions}
        cut = {agent: self._time >= self._limit and not ends[agent] for agent in actions}
        rewards = {agent: float(action) for agent, action in actions.items()}
        self.agents = [agent for agent in self.agents if not (ends[agent] or cut[agent])]
        if self.agents:
            self.agents += [agent for agent, time in self._late.items() if time == self._time]
        shown = {agent: self._seen(agent) for agent in {*actions, *self.agents}}
        return shown, rewards, ends, cut, {agent: {"at": self._at[agent]} for agent in shown}

    def state(self) -> Any:
        return np.array([self._at[agent] for agent in self.possible_agents], np.float32)

    def close(self) -> None:
        pass

    def _seen(self, agent: str) -> Any:
        number = self.possible_agents.index(agent)
        return np.array([self._at[agent], self._lengths[agent], number, self._time], np.float32)


def parallel_env(**kwargs: Any) -> Corridors:
    return Corridors(**({"lengths": {"short": 2, "long": 5}} | kwargs))
