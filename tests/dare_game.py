"""A game of two turns whose best first move depends on how well the other plays, in PettingZoo's convention (AEC)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

SIGNS = 3
HOLD, DARE = 0, 1


class Dare:
    """Both see one of three signs. The first holds or dares (any action but 0), then the second names a sign.

    Who dares wins 1 from one who names the wrong sign, and loses 1 to one who names the right one. Who holds loses ¼ to
    the right sign. So daring is worth ⅓ against random answers, and −1 against right ones; holding −0.25.
    """

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["first", "second"], list[str]()
        self._games = np.random.default_rng(0)

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(0.0, 1.0, (SIGNS + 2,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(SIGNS)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self._games = np.random.default_rng(seed)
        self._sign, self._dared = int(self._games.integers(SIGNS)), False
        self.agents, self.agent_selection = list(self.possible_agents), "first"
        self.rewards, self._over = dict.fromkeys(self.agents, 0.0), False

    def last(self) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        agent = self.agent_selection
        return shown(self._sign, agent), self.rewards[agent], self._over, False, {}

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self._over:
            self.agents.remove(agent)
        elif agent == "first":
            self._dared = action != HOLD
        else:
            right = action == self._sign
            lost = (1.0 if right else -1.0) if self._dared else 0.25 * right
            self.rewards, self._over = {"first": -lost, "second": lost}, True
        self.agent_selection = self.possible_agents[agent == "first"]

    def close(self) -> None:
        pass


def shown(sign: int, agent: str) -> NDArray[np.float32]:
    """The sign and the part that one plays, each as one of several."""
    seen = np.zeros(SIGNS + 2, np.float32)
    seen[[sign, SIGNS + (agent == "second")]] = 1.0
    return seen


def played(choose: Callable[[NDArray[np.float32]], int]) -> tuple[int, int]:
    """How many signs are held as first, and answered rightly as second."""
    held = sum(choose(shown(sign, "first")) == HOLD for sign in range(SIGNS))
    return held, sum(choose(shown(sign, "second")) == sign for sign in range(SIGNS))


def env() -> Dare:
    return Dare()
