"""Who plays the agents that are not learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from apexrl.spec import ACTION_MASK, ENDLESS, Array, EnvSpec

Floats = NDArray[np.float32]


class Asked(NamedTuple):
    """An agent that is to act."""

    game: int
    agent: str
    player: str  # who acts for it
    begins: bool  # the first time in this game


class Players(Protocol):
    """Chooses who plays, and their actions."""

    def draw(self, agents: Sequence[str]) -> dict[str, str]:
        """Agent -> who plays it in a new game: a name that ``act`` knows."""

    def act(self, asked: Sequence[Asked], spec: EnvSpec, observations: dict[str, Array]) -> Array:
        """The actions of those who are asked, counted from 0, [N, ...].

        Args:
            spec: of what these agents see, and do.
            observations: name -> [N, ...].
        """


MakePlayers = Callable[[int], Players]
"""From a seed."""


class RandomPlayers:
    """All play uniformly at random, among the actions that their mask allows where an observation has one."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def draw(self, agents: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(agents, "random")

    def act(self, asked: Sequence[Asked], spec: EnvSpec, observations: dict[str, Array]) -> Array:
        return random_actions(self._rng, spec, observations, len(asked))


def random_actions(rng: np.random.Generator, spec: EnvSpec, observations: dict[str, Array], count: int) -> Array:
    """``count`` actions, uniformly at random; numbers without bounds as Gymnasium's ``Box.sample`` draws them."""
    action = spec.action
    if spec.masked:
        mask = np.asarray(observations[ACTION_MASK]).astype(bool)
        parts = np.split(mask, np.cumsum(action.choices)[:-1], axis=1)
        drawn = np.stack([np.argmax(rng.random(part.shape) * part, axis=1) for part in parts], axis=1)
        return drawn if action.nvec else drawn[:, 0]
    if action.discrete:
        return rng.integers(action.n, size=count)
    choices = rng.integers(np.array(action.nvec, np.int64), size=(count, len(action.nvec)))
    if action.low is None:
        return choices
    numbers = _numbers(rng, cast("Floats", action.low), cast("Floats", action.high), count)
    return np.asarray(np.concatenate((choices, numbers), axis=1) if action.hybrid else numbers, np.float32)


def _numbers(rng: np.random.Generator, low: Floats, high: Floats, count: int) -> Array:
    """Uniform between two bounds, exponential beyond one, normal without any."""
    shape, below, above = (count, *low.shape), low >= -ENDLESS, high <= ENDLESS
    least, most = np.where(below, low, 0.0), np.where(above, high, 0.0)
    between = rng.uniform(np.where(below & above, least, 0.0), np.where(below & above, most, 1.0), shape)
    if (below & above).all():
        return between
    beyond, anywhere = rng.exponential(size=shape), rng.normal(size=shape)
    return np.select([below & above, below, above], [between, least + beyond, most - beyond], anywhere)
