"""Small environments with known answers, registered with Gymnasium: ``apexrl.envs.toy:Catch-v0`` and so on.

| id | what it is | known answer |
|---|---|---|
| ``Catch-v0`` | 84×84 pixel Catch | best return 1 |
| ``SlowCartPole-v0`` | CartPole-v1 that waits ``seconds`` a step | best return 500 |
| ``PositionCartPole-v0`` | CartPole-v1 that shows positions and no velocities | best return 500, with a memory |
| ``Corridor-v0`` | a chain with an exit at either end | ``Corridor.q_star`` |
| ``Endless-v0`` | reward 1, cut by a time limit, never terminates | value 1 / (1 − γ) |
| ``Signals-v0`` | Dict observation: act on an image and a number | best return 8 |
| ``Doors-v0`` | few of many doors are open, as a mask of actions says | best return 8, with masks |

Those that fail on purpose are in ``apexrl.envs.faulty``.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

Info = dict[str, Any]


class Catch(gym.Env[NDArray[np.uint8], np.int64]):
    """A ball falls down a board of 10×5 cells; a paddle on the bottom row catches it (after bsuite's Catch).

    Drawn as uint8 [84, 84]. Actions: left, stay, right. Reward +1 or −1 when the ball arrives, 9 steps after the start.
    """

    ROWS, COLUMNS, PIXELS = 10, 5, 84
    action_space = gym.spaces.Discrete(3)
    observation_space = gym.spaces.Box(0, 255, (PIXELS, PIXELS), np.uint8)
    _y = np.linspace(0, PIXELS, ROWS + 1).round().astype(int).tolist()
    _x = np.linspace(0, PIXELS, COLUMNS + 1).round().astype(int).tolist()

    def __init__(self) -> None:
        self._row = self._column = self._paddle = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray[np.uint8], Info]:
        super().reset(seed=seed)
        self._row, self._column, self._paddle = 0, int(self.np_random.integers(self.COLUMNS)), self.COLUMNS // 2
        return self._draw(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, Info]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self.COLUMNS - 1)
        self._row += 1
        arrived = self._row == self.ROWS - 1
        reward = (1.0 if self._column == self._paddle else -1.0) if arrived else 0.0
        return self._draw(), reward, arrived, False, {}

    def _draw(self) -> NDArray[np.uint8]:
        board = np.zeros((self.PIXELS, self.PIXELS), np.uint8)
        for row, column in ((self._row, self._column), (self.ROWS - 1, self._paddle)):
            board[self._y[row] : self._y[row + 1], self._x[column] : self._x[column + 1]] = 255
        return board


class SlowCartPole(CartPoleEnv):
    """CartPole whose every step waits ``seconds``, as a simulator does that lives in another process.

    It sleeps rather than computes, so many of them fit on few cores.
    """

    def __init__(self, seconds: float = 0.005, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._seconds = seconds

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        time.sleep(self._seconds)
        return super().step(action)  # type: ignore[no-any-return, no-untyped-call]


class PositionCartPole(CartPoleEnv):
    """CartPole that shows where cart and pole are, and not how fast they move: float32 [2], metres and radians.

    What to do depends on the velocities, so it takes two observations, or a memory, to balance the pole.
    """

    SHOWN = (0, 2)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space: gym.spaces.Box = _only(self.observation_space, self.SHOWN)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray[np.float32], Info]:
        observation, info = super().reset(seed=seed, options=options)
        return observation[..., self.SHOWN], info

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        observation, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation[..., self.SHOWN], reward, terminated, truncated, info


class PositionCartPoles(CartPoleVectorEnv):
    """B of them at once."""

    def __init__(self, num_envs: int = 1, **kwargs: Any) -> None:
        super().__init__(num_envs, **kwargs)
        self.single_observation_space = _only(self.single_observation_space, PositionCartPole.SHOWN)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, **kwargs: Any) -> tuple[NDArray[np.float32], Info]:
        observation, info = super().reset(**kwargs)
        return observation[..., PositionCartPole.SHOWN], info

    def step(self, action: Any) -> Any:
        observation, *results = super().step(action)
        return observation[..., PositionCartPole.SHOWN], *results


def _only(space: Any, shown: tuple[int, ...]) -> gym.spaces.Box:
    return gym.spaces.Box(space.low[..., shown], space.high[..., shown], dtype=space.dtype)


class Corridor(gym.Env[np.int64, np.int64]):
    """States 0 … length−1 in a row; action 0 goes left, 1 goes right. Leaving at the right end pays 1, at the left 0.1.

    Every episode starts in a random state, so that every Q-value is visited.
    """

    LEFT_EXIT, RIGHT_EXIT = 0.1, 1.0

    def __init__(self, length: int = 6) -> None:
        self.length = length
        self.observation_space = gym.spaces.Discrete(length)
        self.action_space = gym.spaces.Discrete(2)
        self._state = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.int64, Info]:
        super().reset(seed=seed)
        self._state = int(self.np_random.integers(self.length))
        return np.int64(self._state), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, Info]:
        state = self._state + (1 if action == 1 else -1)
        if 0 <= state < self.length:
            self._state = state
            return np.int64(state), 0.0, False, False, {}
        return np.int64(self._state), self.LEFT_EXIT if state < 0 else self.RIGHT_EXIT, True, False, {}


class Endless(gym.Env[NDArray[np.float32], np.int64]):
    """Reward 1 for ever, one state. Only a time limit cuts it, so its value is 1 / (1 − γ) and no less."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray[np.float32], Info]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        return np.ones(1, np.float32), 1.0, False, False, {}


class Signals(gym.Env[Info, np.int64]):
    """Eight rounds: an image lights its left or right half, a number is ±1. Reward 1 for the action that says whether
    light on the right and a positive number agree. Neither signal alone tells anything.

    Observation: ``Dict(image=uint8 [16, 16], body=Dict(sign=float32 [1]))``, nested on purpose.
    """

    ROUNDS, PIXELS = 8, 16
    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (PIXELS, PIXELS), np.uint8),
        body=gym.spaces.Dict(sign=gym.spaces.Box(-1.0, 1.0, (1,), np.float32)),
    )

    def __init__(self) -> None:
        self._round = 0
        self._lit_right = self._positive = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        super().reset(seed=seed)
        self._round = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> tuple[Info, float, bool, bool, Info]:
        reward = float(int(action) == int(self._lit_right == self._positive))
        self._round += 1
        return self._draw(), reward, self._round == self.ROUNDS, False, {}

    def _draw(self) -> Info:
        self._lit_right, self._positive = (bool(bit) for bit in self.np_random.integers(2, size=2))
        image = np.zeros((self.PIXELS, self.PIXELS), np.uint8)
        half = self.PIXELS // 2
        image[:, half:] = 255 * self._lit_right
        image[:, :half] = 255 * (not self._lit_right)
        return {"image": image, "body": {"sign": np.array([1.0 if self._positive else -1.0], np.float32)}}


class Doors(gym.Env[Any, Any]):
    """Eight rounds: of each row of doors, most are closed, as the mask of actions says, and a sign ±1 says whether to
    take the first or the last of those that are open. That is worth 1, shared among the rows; a closed door −1.

    What doors are open is nowhere but in the mask. The metric ``invalid_actions`` of an episode counts closed doors.

    Args:
        doors: of each row.
        opened: of them, at least 1.
        rows: with more than one, actions are MultiDiscrete.
        told: where masks are: the ``method`` action_masks(), ``info``, the ``key`` action_mask of a Dict observation,
            or ``nowhere``.
        strict: a closed door raises ValueError.
    """

    ROUNDS = 8

    def __init__(
        self, doors: int = 10, opened: int = 3, rows: int = 1, told: str = "method", strict: bool = False
    ) -> None:
        signs = gym.spaces.Box(-1.0, 1.0, (rows,), np.float32)
        mask = gym.spaces.MultiBinary(rows * doors)
        self.observation_space: Any = gym.spaces.Dict(signs=signs, action_mask=mask) if told == "key" else signs
        self.action_space: Any = gym.spaces.MultiDiscrete([doors] * rows) if rows > 1 else gym.spaces.Discrete(doors)
        self._doors, self._opened, self._rows, self._told, self._strict = doors, opened, rows, told, strict
        self._round = self._invalid = 0
        self._open = np.zeros((rows, doors), np.bool_)
        self._told_mask = np.zeros(rows * doors, np.int8)
        self._signs = np.ones(rows, np.float32)
        if told == "method":
            self.action_masks = self._mask

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self._round = self._invalid = 0
        return self._show(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        reward = 0.0
        for row, door in enumerate(np.atleast_1d(action).tolist()):
            opened = np.flatnonzero(self._open[row])
            self._invalid += not self._open[row, door]
            if self._strict and self._invalid:
                raise ValueError(f"door {door} of row {row} is closed; open are {opened.tolist()}")
            right = opened[0] if self._signs[row] < 0 else opened[-1]
            reward += float(door == right) if self._open[row, door] else -1.0
        self._round += 1
        ended = self._round == self.ROUNDS
        seen, info = self._show(), self._info()
        if ended:
            info["metrics"] = {"invalid_actions": self._invalid}
        return seen, reward / self._rows, ended, False, info

    def _show(self) -> Any:
        order = self.np_random.random((self._rows, self._doors)).argsort(axis=1)
        self._open = order < self._opened
        self._told_mask = self._open.reshape(-1).astype(np.int8)  # told or not: its time is not what masks cost
        self._signs = np.where(self.np_random.random(self._rows) < 0.5, -1.0, 1.0).astype(np.float32)
        return {"signs": self._signs, "action_mask": self._mask()} if self._told == "key" else self._signs

    def _info(self) -> Info:
        return {"action_mask": self._mask()} if self._told == "info" else {}

    def _mask(self) -> NDArray[np.int8]:
        return self._told_mask


gym.register("Catch-v0", entry_point="apexrl.envs.toy:Catch")
gym.register("SlowCartPole-v0", entry_point="apexrl.envs.toy:SlowCartPole", max_episode_steps=500)
gym.register(
    "PositionCartPole-v0",
    entry_point="apexrl.envs.toy:PositionCartPole",
    vector_entry_point="apexrl.envs.toy:PositionCartPoles",
    max_episode_steps=500,
)
gym.register("Corridor-v0", entry_point="apexrl.envs.toy:Corridor", max_episode_steps=100)
gym.register("Endless-v0", entry_point="apexrl.envs.toy:Endless", max_episode_steps=10)
gym.register("Signals-v0", entry_point="apexrl.envs.toy:Signals")
gym.register("Doors-v0", entry_point="apexrl.envs.toy:Doors")
