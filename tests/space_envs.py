"""Tiny environments whose observations are needed: texts, sequences, graphs, tuples, and dicts such as NetHack's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    GraphInstance,
    MultiBinary,
    MultiDiscrete,
    Sequence,
    Text,
    Tuple,
)

WORDS = ("red", "green", "blue")
STEPS = 8


class Shows(gym.Env[Any, Any], ABC):
    """A secret of 0 … 2 is shown anew at each step; naming it is worth 1.

    With ``dial`` an action is a number of −1 … 1, and worth 1 less its distance from the secret − 1: a third for 0.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any] = Discrete(3)

    def __init__(self, dial: bool = False) -> None:
        self._secret, self._steps, self._dial = 0, 0, dial
        if dial:
            self.action_space = Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 1.0 - abs(float(action[0]) + 1.0 - self._secret) if self._dial else float(action == self._secret)
        self._steps += 1
        return self._draw(), reward, self._steps == STEPS, False, {}

    def _draw(self) -> Any:
        self._secret = int(self.np_random.integers(3))
        return self.shown(self._secret)

    @abstractmethod
    def shown(self, secret: int) -> Any: ...


class Told(Shows):
    """A sentence names it."""

    observation_space = Dict(mission=Text(32), noise=Box(-1.0, 1.0, (2,)))

    def shown(self, secret: int) -> Any:
        where = " ".join(["over there"] * int(self.np_random.integers(2)))
        return {"mission": f"go to the {WORDS[secret]} ball {where}", "noise": self.np_random.uniform(-1, 1, 2)}


class Bag(Shows):
    """The kind of the heaviest element of a bag."""

    observation_space = Sequence(Dict(kind=Discrete(3, start=1), weight=Box(0.0, 1.0, (1,))))

    def shown(self, secret: int) -> Any:
        count = int(self.np_random.integers(1, 5))
        kinds, weights = self.np_random.integers(3, size=count), self.np_random.uniform(0.0, 0.5, count)
        heaviest = int(self.np_random.integers(count))
        kinds[heaviest], weights[heaviest] = secret, 1.0
        return tuple({"kind": int(k) + 1, "weight": np.array([w])} for k, w in zip(kinds, weights, strict=True))


class Linked(Shows):
    """The kind of the node that node 0 has an edge to. Nodes are of every kind: without edges nothing is known."""

    observation_space = Graph(Box(0.0, 1.0, (4,)), Discrete(2))

    def shown(self, secret: int) -> Any:
        more = self.np_random.integers(3, size=int(self.np_random.integers(2)))
        kinds = self.np_random.permutation([*range(3), *more])
        to = 1 + int(np.argmax(kinds == secret))
        nodes = np.zeros((1 + len(kinds), 4), np.float32)
        nodes[1 + np.arange(len(kinds)), kinds] = 1.0
        nodes[0, 3] = 1.0
        return GraphInstance(nodes, np.zeros(1, np.int64), np.array([[0, to]], np.int64))


class Glyphs(Shows):
    """A dict such as NetHack's: two of its entries together name it."""

    observation_space = Dict(
        glyphs=Box(0, 5976, (9, 12), np.int16),
        blstats=Box(-(2**31), 2**31 - 1, (5,), np.int64),
        message=Text(40),
        inventory=Sequence(Text(16)),
        colors=MultiDiscrete([[4, 4, 4]] * 3),
        where=Tuple([Discrete(3), MultiBinary(2)]),
    )

    def shown(self, secret: int) -> Any:
        glyphs = np.full((9, 12), 2359, np.int16)
        glyphs[self.np_random.integers(9), self.np_random.integers(12)] = 300
        first = int(self.np_random.integers(3))
        return {
            "glyphs": glyphs,
            "blstats": np.arange(5),
            "message": "" if first else "You see here a bag.",
            "inventory": ("a dagger", "an uncursed bag")[: first % 3],
            "colors": self.np_random.integers(4, size=(3, 3)),
            "where": ((secret - first) % 3, np.zeros(2, np.int8)),
        }


class Level(Shows):
    """Glyphs and statistics, which agents of NetHack look at most: a row of the map and the first number name it."""

    observation_space = Dict(glyphs=Box(0, 5976, (9, 12), np.int16), blstats=Box(-(2**31), 2**31 - 1, (5,), np.int64))

    def shown(self, secret: int) -> Any:
        first = int(self.np_random.integers(3))
        glyphs = np.full((9, 12), 2359, np.int16)
        glyphs[self.np_random.integers(9)] = (300, 301, 5976)[first]
        return {"glyphs": glyphs, "blstats": np.array([(secret - first) % 3, *self.np_random.integers(3, size=4)])}


class Mixed(Shows):
    """An image and several numbers in one: the lit third and the second number together name it."""

    observation_space = Dict(image=Box(0, 255, (12, 12), np.uint8), code=MultiDiscrete([4, 3], start=[1, 1]))

    def shown(self, secret: int) -> Any:
        lit = int(self.np_random.integers(3))
        image = np.zeros((12, 12), np.uint8)
        image[:, 4 * lit : 4 * lit + 4] = 255
        return {"image": image, "code": np.array([self.np_random.integers(1, 5), (secret - lit) % 3 + 1])}


class Beside(Mixed):
    """The code is the first of three numbers, and the others are noise."""

    observation_space = Dict(image=Box(0, 255, (12, 12), np.uint8), numbers=Box(-1.0, 1.0, (3,)))

    def shown(self, secret: int) -> Any:
        seen = super().shown(secret)
        numbers = self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)
        numbers[0] = seen["code"][1] - 2.0
        return {"image": seen["image"], "numbers": numbers}


class Nested(Shows):
    """A tuple of dicts of tuples: a category and the second number of several together name it."""

    observation_space = Tuple(
        [
            Box(-1.0, 1.0, (2,)),
            Dict(inner=Tuple([MultiDiscrete([4, 3], start=[1, 1]), Dict(first=Discrete(3, start=-1))])),
        ]
    )

    def shown(self, secret: int) -> Any:
        first = int(self.np_random.integers(3))
        several = np.array([self.np_random.integers(1, 5), (secret - first) % 3 + 1])
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {"inner": (several, {"first": first - 1})}


class Long(Shows):
    """Its sequence grows with every step."""

    observation_space = Sequence(Discrete(3))

    def shown(self, secret: int) -> Any:
        return (secret,) * (self._steps + 1)


class Pair(gym.Env[Any, Any]):
    """Which of two levers, and how far: both must be what is shown. Actions are a dict of both."""

    observation_space = Box(-1.0, 1.0, (2,))
    action_space: gym.Space[Any] = Dict(lever=Discrete(2, start=1), how=Dict(far=Box(-1.0, 1.0, (1,), np.float64)))

    def __init__(self, tuples: bool = False) -> None:
        self._seen = np.zeros(2, np.float32)
        self._steps = 0
        if tuples:
            self.action_space = Tuple([Box(-1.0, 1.0, (1,)), MultiDiscrete([2])])
        self._tuples = tuples

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        lever, far = (
            (int(action[1][0]), float(action[0][0]))
            if self._tuples
            else (int(action["lever"]) - 1, float(action["how"]["far"][0]))
        )
        right = lever == int(self._seen[0] > 0)
        reward = (1.0 if right else -1.0) - abs(far - (self._seen[1] if right else -self._seen[1]))
        self._steps += 1
        return self._draw(), float(reward), self._steps == STEPS, False, {}

    def _draw(self) -> Any:
        self._seen = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self._seen
