"""What a step of an environment costs: how long it takes, and how much of that time it only waits."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import gymnasium as gym

from apexrl.envs.action_masks import random_action
from apexrl.envs.lockstep import EnvCall
from apexrl.shared.thread_seconds import moment

LEAST_SECONDS = 0.001
"""Of a step that is worth a thread: to hand it to one and to take it back costs a fifth of that."""
LEAST_WAIT = 0.5
"""Share of a step in which others may step: less than that, and threads would share one core."""
MOST_THREADS = 256
"""In one actor, unless they are asked for."""

_MEASURED_SECONDS = 0.1
_MOST_STEPS = 32
_LONG_SECONDS = 1.0  # a step that takes so long is not made twice


class StepCost(NamedTuple):
    """Of one step on average, without the time in which its thread had no core."""

    seconds: float
    waits: float
    """Share of it in which its thread did not compute, 0 … 1."""

    @property
    def wants_threads(self) -> bool:
        """Whether environments are better stepped at the same time, each in a thread."""
        return self.seconds >= LEAST_SECONDS and self.waits >= LEAST_WAIT

    def __str__(self) -> str:
        return f"a step takes {1000 * self.seconds:.3g} ms, of which it waits {100 * self.waits:.0f} %"


def step_cost(env: gym.Env[Any, Any], seed: int, call: EnvCall) -> StepCost:
    """Measured over some random steps, a tenth of a second of them, or one.

    Args:
        call: entered around every call.
    """
    with call():
        going = RandomSteps(env, seed)
    first = _steps(going, call, 1)
    if first.seconds >= _LONG_SECONDS:
        return first
    return _steps(going, call, _MOST_STEPS)  # the first one may have compiled or loaded things


class RandomSteps:
    """An environment that is stepped with random actions, of those that a mask in its observation leaves, and reset
    whenever an episode ends."""

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        self._env = env
        env.action_space.seed(seed)
        self._seen, _ = env.reset(seed=seed)

    @property
    def seen(self) -> Any:
        """The newest observation."""
        return self._seen

    def step(self) -> None:
        action = random_action(self._env.action_space, self._seen)
        self._seen, _, terminated, truncated, _ = self._env.step(action)
        if terminated or truncated:
            self._seen, _ = self._env.reset()


def _steps(going: RandomSteps, call: EnvCall, most: int) -> StepCost:
    began, steps = moment(), 0
    while steps < most and time.perf_counter() - began.clock < _MEASURED_SECONDS:
        with call():
            going.step()
        steps += 1
    now = moment()
    own = began.own_until(now)
    return StepCost(own / steps, min(1.0, max(0.0, 1.0 - (now.computed - began.computed) / own)))
