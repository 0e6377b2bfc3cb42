"""Small environments that need a memory, with known answers: ``apexrl.envs.memory_tasks:TMaze-v0`` and so on.

| id | what it is | best return; without a memory |
|---|---|---|
| ``TMaze-v0`` | the first observation says where to turn at a corridor's end | 1; 0 |
| ``RepeatPrevious-v0`` | say which of four cards was shown ``k`` steps ago | 1; −0.5 |
| ``Recall-v0`` | box: go on naming the number that the first observation showed | 5; 3 |
| ``Shown-v0`` | another environment, of whose vector the first ``first`` numbers are shown | that environment's |
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Info = dict[str, Any]
Floats = NDArray[np.float32]


class TMaze(gym.Env[Floats, np.int64]):
    """Bakker 2002, Reinforcement Learning with Long Short-Term Memory: a corridor of ``length`` steps to a junction.

    Shown: the way that the goal is (1 or −1) at the first step and 0 later, and whether this is the junction. Actions:
    on, left (−1), right (1). The goal is worth 1, the other end −1; to turn in the corridor costs 0.1, as does to go on
    at the junction. Cut after 4·``length`` steps.
    """

    action_space = gym.spaces.Discrete(3)
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, length: int = 8) -> None:
        self._length = length
        self._goal = self._place = self._steps = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        super().reset(seed=seed)
        self._goal, self._place, self._steps = 2 * int(self.np_random.integers(2)) - 1, 0, 0
        return self._shown(), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, Info]:
        self._steps += 1
        junction, on = self._place == self._length, int(action) == 0
        if junction and not on:
            reward = 1.0 if 2 * int(action) - 3 == self._goal else -1.0
            return self._shown(), reward, True, False, {}
        self._place += on and not junction
        reward = 0.0 if on and not junction else -0.1
        return self._shown(), reward, False, self._steps == 4 * self._length, {}

    def _shown(self) -> Floats:
        cue = self._goal if self._steps == 0 else 0
        return np.array([cue, self._place == self._length], np.float32)


class RepeatPrevious(gym.Env[np.int64, np.int64]):
    """POPGym's task of this name (Morad et al. 2023, arXiv 2303.01859): ``steps`` cards of four kinds, one by one; what
    was shown ``k`` steps ago is to be named. Each answer is worth ±1/(steps − k); before there is one, nothing."""

    CARDS = 4
    action_space = gym.spaces.Discrete(CARDS)
    observation_space = gym.spaces.Discrete(CARDS)

    def __init__(self, k: int = 4, steps: int = 32) -> None:
        self._k, self._count = k, steps
        self._cards: NDArray[np.int64] = np.zeros(steps + 1, np.int64)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.int64, Info]:
        super().reset(seed=seed)
        self._step, self._cards = 0, self.np_random.integers(self.CARDS, size=self._count + 1)
        return self._cards[0], {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, Info]:
        asked, reward = self._step - self._k, 0.0
        if asked >= 0:
            reward = (1.0 if int(action) == self._cards[asked] else -1.0) / (self._count - self._k)
        self._step += 1
        return self._cards[self._step], reward, self._step == self._count, False, {}


class Recall(gym.Env[Floats, Floats]):
    """A number in −1 … 1 is shown at the first of ``steps`` steps, and 0 beside a 1 later. Every action [1] is worth
    1 − |action − number|."""

    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, steps: int = 5) -> None:
        self._count, self._steps, self._number = steps, 0, 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        super().reset(seed=seed)
        self._steps, self._number = 0, float(self.np_random.uniform(-1.0, 1.0))
        return np.array([self._number, 0.0], np.float32), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, Info]:
        self._steps += 1
        reward = 1.0 - abs(float(action[0]) - self._number)
        return np.array([0.0, 1.0], np.float32), reward, self._steps == self._count, False, {}


class Shown(gym.ObservationWrapper[Floats, Any, Floats]):
    """The first numbers of an environment's vector: ``env="HalfCheetah-v5", first=8`` has no velocities, nor have
    ``env="Pendulum-v1", first=2`` and ``env="LunarLander-v3", first=2``.

    Args:
        env: an id of Gymnasium's.
        first: how many are shown.
        kwargs: of the environment.
    """

    def __init__(self, env: str, first: int, render_mode: str | None = None, **kwargs: Any) -> None:
        super().__init__(gym.make(env, render_mode=render_mode, **kwargs))
        space = self.env.observation_space
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1 or not 0 < first <= space.shape[0]:
            raise ValueError(f"Shown-v0: {env} shows {space}, of which first={first} numbers cannot be taken")
        self._first = first
        self.observation_space = gym.spaces.Box(space.low[:first], space.high[:first], dtype=np.float32)

    def observation(self, observation: Any) -> Floats:
        return np.asarray(observation[: self._first], np.float32)


gym.register("TMaze-v0", entry_point="apexrl.envs.memory_tasks:TMaze")
gym.register("RepeatPrevious-v0", entry_point="apexrl.envs.memory_tasks:RepeatPrevious")
gym.register("Recall-v0", entry_point="apexrl.envs.memory_tasks:Recall")
gym.register("Shown-v0", entry_point="apexrl.envs.memory_tasks:Shown")
