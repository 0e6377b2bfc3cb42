"""Puts goals drawn in hindsight into a batch: observations, n-step rewards and discounts are made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from apexrl.config import Config
from apexrl.spec import DESIRED_GOAL, Array

if TYPE_CHECKING:
    from apexrl.replay import Batch


class Rewards(Protocol):
    """What an environment says of goals (``envs.goal_rewards.GoalRewards``)."""

    def rewards(self, achieved: Array, desired: Array) -> NDArray[np.float32]: ...
    def terminated(self, achieved: Array, desired: Array) -> NDArray[np.bool_] | None: ...
    def close(self) -> None: ...


class GoalRelabelling:
    """Hindsight experience replay (Andrychowicz et al. 2017), of batches whose goals the replay has drawn.

    An item of m steps gets the return Σ_{k<m} γ^k r(g_{t+k+1}, g'), with g the goals achieved and g' the one drawn, up
    to the first step that ends an episode under g'; and the discount γ^m, or 0 if there is such a step. Where the
    environment does not say which steps end an episode, those do that did.

    Args:
        gamma: discount per step.
    """

    def __init__(self, rewards: Rewards, gamma: float) -> None:
        self._rewards = rewards
        self._gamma = gamma

    def __call__(self, batch: Batch, gamma: float | None = None, **_: Any) -> None:
        """Relabel a batch where it is, and take out of it what the replay has drawn.

        Args:
            gamma: discount per step of this batch, where it is another.
        """
        gamma, data = self._gamma if gamma is None else gamma, batch.data
        rows = np.flatnonzero(data.pop("hindsight/relabelled"))
        drawn = (data.pop(f"hindsight/{name}")[rows] for name in ("goal", "achieved", "steps"))
        goals, achieved, steps = drawn
        if not len(rows):
            return
        inside = np.arange(achieved.shape[1]) < steps[:, None]  # [B', n]
        after = achieved[inside]
        wanted = np.repeat(goals, steps, axis=0)
        reward = np.zeros(inside.shape)
        reward[inside] = self._rewards.rewards(after, wanted)
        ended = np.zeros(inside.shape, np.bool_)
        found = self._rewards.terminated(after, wanted)
        if found is None:
            ended[np.arange(len(rows)), steps - 1] = data["discount"][rows] == 0
        else:
            ended[inside] = found
        left = np.cumprod(~ended, axis=1)  # 1 while the episode goes on
        before = np.concatenate([np.ones((len(rows), 1)), left[:, :-1]], axis=1)
        returns = (reward * before * gamma ** np.arange(inside.shape[1])).sum(axis=1)
        _put(data, "reward", rows, returns)
        _put(data, "discount", rows, gamma**steps * left[:, -1])
        for name in (DESIRED_GOAL, f"next_{DESIRED_GOAL}"):
            shown = data[name]
            _put(data, name, rows, goals if shown.ndim == goals.ndim else goals[:, None])  # the same in every frame

    def close(self) -> None:
        self._rewards.close()


def goal_relabelling(config: Config) -> GoalRelabelling | None:
    """What a learner does to its batches; None: no goals are drawn in hindsight.

    Raises:
        EnvError: the environment has no goals, or no ``compute_reward``.
    """
    if config.replay.hindsight == "none":
        return None
    from apexrl.envs.goal_rewards import GoalRewards

    return GoalRelabelling(GoalRewards(config.env), config.agent.gamma)


def _put(data: dict[str, Any], name: str, rows: NDArray[np.intp], values: Array) -> None:
    """``values`` into rows of an array; into a copy, where it belongs to others."""
    if not data[name].flags.writeable:
        data[name] = data[name].copy()
    data[name][rows] = values
