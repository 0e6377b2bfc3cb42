"""Twelve small environments beside the suite, each with another kind of space or reward.

Needs Gymnasium and nothing of apexrl. ``benchmarks.generality.unseen_envs:Thermostat-v0`` and so on.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

Env = gym.Env[Any, Any]
_MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))


class Thermostat(Env):
    """Heat of 0 to 100 brings a room, in kelvins, to a temperature of the episode's own."""

    observation_space = Box(np.array([200.0, 200.0, 0.0], np.float32), np.array([400.0, 400.0, 100.0], np.float32))
    action_space = Box(0.0, 100.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._now, self._wanted, self._heat = self.np_random.uniform(270, 320), self.np_random.uniform(285, 305), 0.0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._heat = float(action[0])
        self._now += 0.05 * self._heat - 0.02 * (self._now - 250.0) + self.np_random.normal(0.0, 0.1)
        return self._seen(), -abs(self._now - self._wanted), False, False, {}

    def _seen(self) -> Any:
        return np.array([self._now, self._wanted, self._heat], np.float32)


class Inventory(Env):
    """How many of 0 to 20 goods to order today, for a demand of about 8 a day. The last order is on its way."""

    observation_space = Box(0, 1000, (2,), np.int64)
    action_space = Discrete(21)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._stock, self._coming = 10, 0
        return np.array([self._stock, self._coming]), {}

    def step(self, action: Any) -> Any:
        stock, demand = self._stock + self._coming, int(self.np_random.poisson(8))
        sold = min(stock, demand)
        self._stock, self._coming = min(1000, stock - sold), int(action)
        reward = 5.0 * sold - 0.5 * self._stock - 2.0 * self._coming - 3.0 * (demand - sold)
        return np.array([self._stock, self._coming]), reward, False, False, {}


class Grid(Env):
    """Walk to a cell of a 7 × 7 grid; two float planes show where one is, and where the cell."""

    observation_space = Box(0.0, 1.0, (2, 7, 7), np.float32)
    action_space = Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at, self._goal = self.np_random.integers(0, 7, 2), self.np_random.integers(0, 7, 2)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._at = np.clip(self._at + _MOVES[int(action)], 0, 6)
        there = bool((self._at == self._goal).all())
        return self._seen(), float(there) - 0.01, there, False, {}

    def _seen(self) -> Any:
        planes = np.zeros((2, 7, 7), np.float32)
        planes[0][tuple(self._at)] = planes[1][tuple(self._goal)] = 1.0
        return planes


class Contextual(Env):
    """Episodes of one step: which of five payoffs, linear in 20 numbers and noisy, is the greatest?"""

    observation_space = Box(-np.inf, np.inf, (20,), np.float32)
    action_space = Discrete(5)
    _weights: ClassVar[Any] = np.random.default_rng(0).normal(size=(5, 20)) / np.sqrt(20)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._seen = self.np_random.normal(size=20).astype(np.float32)
        return self._seen, {}

    def step(self, action: Any) -> Any:
        reward = self._weights[int(action)] @ self._seen + self.np_random.normal()
        return self._seen.copy(), float(reward), True, False, {}


class Chain(Env):
    """Twenty steps to the right earn 1, and nothing else earns anything; 60 steps are left for them."""

    observation_space = Box(0.0, 20.0, (1,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at = 0
        return np.array([0.0], np.float32), {}

    def step(self, action: Any) -> Any:
        self._at = max(0, self._at + (1 if action else -1))
        return np.array([self._at], np.float32), float(self._at == 20), self._at == 20, False, {}


class Tiny(Env):
    """Bring a point of three dimensions to 0 by steps of at most 0.01."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Box(-0.01, 0.01, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at = self.np_random.uniform(-0.3, 0.3, 3)
        return self._at.astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self._at = self._at + action
        return self._at.astype(np.float32), -float(np.abs(self._at).sum()), False, False, {}


class Repeated(Env):
    """Say what is seen, 20 times: 1 for each part that is right."""

    def __init__(self, space: MultiBinary | MultiDiscrete) -> None:
        self.observation_space = self.action_space = space
        self._choices = np.full(space.shape, 2) if isinstance(space, MultiBinary) else space.nvec

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._drawn(), {}

    def step(self, action: Any) -> Any:
        right = float((np.asarray(action) == self._shown).sum())
        return self._drawn(), right, False, False, {}

    def _drawn(self) -> Any:
        self._shown = self.np_random.integers(0, self._choices).astype(self.observation_space.dtype)
        return self._shown


class Huge(Env):
    """Add up two numbers, of which one is shown as 1e-4 and the other as 1e5 of itself. Errors cost millions."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-5.0, 5.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._drawn(), {}

    def step(self, action: Any) -> Any:
        error = float(action[0]) - self._numbers.sum()
        return self._drawn(), -1e6 * error**2, False, False, {}

    def _drawn(self) -> Any:
        self._numbers = self.np_random.uniform(-1, 1, 2)
        return (self._numbers * (1e-4, 1e5)).astype(np.float32)


class Rooms(Env):
    """Fetch a key at the left end, worth 1, and open a door with it at the right end, worth 10."""

    observation_space = Dict(
        {"at": Box(0.0, 100.0, (1,), np.float64), "key": Discrete(2), "battery": Box(0.0, 1.0, ())}
    )
    action_space = Discrete(3, start=-1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at, self._key, self._steps = float(self.np_random.integers(30, 70)), 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._at, self._steps = float(np.clip(self._at + 4 * int(action), 0, 100)), self._steps + 1
        found = self._at == 0.0 and not self._key
        self._key |= found
        opened = self._at == 100.0 and bool(self._key)
        return self._seen(), float(found) + 10.0 * opened - 0.01, opened, False, {}

    def _seen(self) -> Any:
        left = np.float32(max(0.0, 1.0 - self._steps / 200))
        return {"at": np.array([self._at]), "key": int(self._key), "battery": left}


class Joints(Env):
    """Bring 30 numbers of at most 2 to 0, each by steps of at most 0.2."""

    observation_space = Box(-5.0, 5.0, (30,), np.float32)
    action_space = Box(-1.0, 1.0, (30,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at = self.np_random.uniform(-2.0, 2.0, 30).astype(np.float32)
        return self._at.copy(), {}

    def step(self, action: Any) -> Any:
        self._at = np.clip(self._at + 0.2 * action, -5.0, 5.0).astype(np.float32)
        return self._at.copy(), -float(np.square(self._at).mean()), False, False, {}


class Level(Env):
    """Say by one of 300 choices, in order, how large the first of four numbers is, 20 times: at most 1 each."""

    observation_space = Box(-1.0, 1.0, (4,), np.float32)
    action_space = Discrete(300)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        reward = 1.0 - abs(int(action) - (self._seen[0] + 1.0) / 2.0 * 299.0) / 100.0
        return self._shown(), float(reward), False, False, {}

    def _shown(self) -> Any:
        self._seen = self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)
        return self._seen


for _name, _made, _steps, _kwargs in (
    ("Thermostat", Thermostat, 200, {}),
    ("Inventory", Inventory, 100, {}),
    ("Grid", Grid, 50, {}),
    ("Contextual", Contextual, None, {}),
    ("Chain", Chain, 60, {}),
    ("Tiny", Tiny, 100, {}),
    ("Bits", Repeated, 20, {"space": MultiBinary(8)}),
    ("Wheels", Repeated, 20, {"space": MultiDiscrete([10, 10])}),
    ("Huge", Huge, 50, {}),
    ("Rooms", Rooms, 200, {}),
    ("Joints", Joints, 50, {}),
    ("Level", Level, 20, {}),
):
    gym.register(f"{_name}-v0", _made, max_episode_steps=_steps, kwargs=_kwargs)
