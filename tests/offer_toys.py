"""Environments of two agents, in PettingZoo's convention, whose actions are a tuple of a choice and numbers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Offers:
    """A buyer and a seller offer, both at once: an article from 2 on, and two prices. An episode has four offers."""

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["buyer", "seller"], list[str]()
        self._space = gym.spaces.Tuple((gym.spaces.Discrete(3, start=2), gym.spaces.Box(-1.0, 1.0, (2,), np.float64)))

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(5)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return self._space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._offers = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        for action in actions.values():
            self.offer(action)
        all_of, over = self.possible_agents, self._offers == 4
        self.agents = [] if over else self.agents
        ends, stays = dict.fromkeys(all_of, over), dict.fromkeys(all_of, False)
        return dict.fromkeys(all_of, self._offers), dict.fromkeys(all_of, 1.0), ends, stays, {}

    def offer(self, action: Any) -> None:
        assert self._space.contains(action), action
        self._offers += 1

    def close(self) -> None:
        pass


class OffersInTurn(Offers):
    """The same, one after the other (PettingZoo's AEC)."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset()
        self.agent_selection, self.rewards = "buyer", dict.fromkeys(self.possible_agents, 0.0)

    def last(self) -> tuple[Any, ...]:
        return self._offers, 0.0, self._offers == 4, False, {}

    def step(self, action: Any) -> Any:
        if self._offers == 4:
            self.agents.remove(self.agent_selection)
        else:
            self.offer(action)
        self.agent_selection = self.possible_agents[self.agent_selection == "buyer"]


def parallel_env() -> Offers:
    return Offers()


def env() -> OffersInTurn:
    return OffersInTurn()
