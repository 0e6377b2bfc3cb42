"""A tiny cooperative game in PettingZoo's parallel convention, whose team reward nobody can explain alone."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

SIGNS, LUCK, STEPS = 5, 8.0, 8


class SharedLuck:
    """Each of two agents sees a sign of its own and is to name it. Both get the share of right answers, and luck.

    Luck is ± ``LUCK``, drawn at every other step and taken back at the next one, so that a return is 0 … ``STEPS``, the
    sum of the shares. The state is luck alone: [luck, whether it will be taken back].
    """

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []
        self.state_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(0.0, 1.0, (SIGNS,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(SIGNS)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._time, self._luck = list(self.possible_agents), 0, 0.0
        self._draw()
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        right = [actions[agent] == sign for agent, sign in zip(self.possible_agents, self._signs, strict=True)]
        reward = float(np.mean(right)) + self._luck
        self._time += 1
        self._draw()
        ends = self._time >= STEPS
        shown, everyone = self._seen(), self.agents
        self.agents = [] if ends else everyone
        never = dict.fromkeys(everyone, False)
        return (
            shown,
            dict.fromkeys(everyone, reward),
            dict.fromkeys(everyone, ends),
            never,
            {one: {} for one in everyone},
        )

    def state(self) -> Any:
        return np.array([self._luck / LUCK, self._time % 2 == 0], np.float32)

    def close(self) -> None:
        pass

    def _draw(self) -> None:
        self._signs = self._rng.integers(SIGNS, size=2)
        self._luck = -self._luck if self._time % 2 else float(self._rng.choice((-LUCK, LUCK)))

    def _seen(self) -> dict[str, Any]:
        shown = np.eye(SIGNS, dtype=np.float32)[self._signs]
        return dict(zip(self.possible_agents, shown, strict=True))


def parallel_env() -> SharedLuck:
    return SharedLuck()
