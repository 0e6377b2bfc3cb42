"""Small games of teams that show what ways of making up a team's value can say, and what a memory is for."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np

PAYOFFS = (((7.0, 7.0), (7.0, 7.0)), ((0.0, 1.0), (1.0, 8.0)))
"""Of the two matrix games: first agent's action, then the second's."""


class TwoStepGame:
    """The two-step game of Rashid et al. 2018 (QMIX, arXiv 1803.11485), section 5.1, in PettingZoo's convention.

    The first agent's first action chooses one of two matrix games, which both see; the second step's actions are played
    there. One pays 7 whatever both do; the other 0, 1, 1 or 8. A sum of two values cannot say that both together are
    worth 8 where one alone spoils it, so its greedy play earns 7; the best is 8. Both get all of the reward.
    """

    def __init__(self) -> None:
        self.possible_agents = ["first", "second"]
        self.agents: list[str] = []
        self.state_space = gym.spaces.Box(0.0, 1.0, (3,), np.float32)
        self._place, self._ends = 0, False

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return self.state_space

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._ends = list(self.possible_agents), False
        self._begin(seed)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        first, second = (int(actions[agent]) for agent in self.possible_agents)
        ends, reward = self._ends, 0.0
        if ends:
            reward = self._payoff(first, second)
        else:
            self._choose(first)
        everybody = self.possible_agents
        self.agents, self._ends = [] if ends else list(everybody), True
        never: dict[str, Any] = dict.fromkeys(everybody, False)
        nothing: dict[str, Any] = {agent: {} for agent in everybody}
        return self._seen(), dict.fromkeys(everybody, reward), dict.fromkeys(everybody, ends), never, nothing

    def state(self) -> Any:
        return np.eye(3, dtype=np.float32)[self._place]

    def close(self) -> None: ...

    def _begin(self, seed: int | None) -> None:
        self._place = 0

    def _choose(self, first: int) -> None:
        self._place = 1 + first

    def _payoff(self, first: int, second: int) -> float:
        return PAYOFFS[self._place - 1][first][second]

    def _seen(self) -> dict[str, Any]:
        return {agent: self.state() for agent in self.possible_agents}


class CueGame(TwoStepGame):
    """A two-step game whose agents must remember: the first step shows both one of two cues, the second shows none.

    The second step pays 8 if both take the action that the cue has named, else 0: 4 for a team that forgets. The state
    keeps the cue.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rng = np.random.default_rng()

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._place = int(self._rng.integers(2))

    def _choose(self, first: int) -> None: ...

    def _payoff(self, first: int, second: int) -> float:
        return 8.0 * (first == second == self._place)

    def _seen(self) -> dict[str, Any]:
        shown = np.eye(3, dtype=np.float32)[2] if self._ends else self.state()
        return dict.fromkeys(self.possible_agents, shown)


def parallel_env(game: Literal["two_step", "cue"] = "two_step") -> TwoStepGame:
    """One of the games."""
    return {"two_step": TwoStepGame, "cue": CueGame}[game]()
