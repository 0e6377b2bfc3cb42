"""The value of the later state in Q-learning: that of its best action, or Munchausen's soft value."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from apexrl.agents.horizon import longest
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.losses import munchausen_reward, munchausen_value, taken


class Targets(Protocol):
    """B is the batch, n the number of actions."""

    looks_back: bool  # whether ``reward`` reads the target network on the state itself

    def reward(self, reward: Tensor, q: Tensor, action: Tensor) -> Tensor:
        """R [B], from the environment's and Q⁻(s, ·) [B, n]."""

    def value(self, later: Tensor, chooser: Tensor) -> Tensor:
        """Of values [B, n], or quantiles or probabilities [B, n, N]: [B] or [B, N]. ``chooser``: Q(s', ·) [B, n]."""


class Greedy:
    """The best action's (Mnih et al. 2015); with the online network's Q it is double (van Hasselt et al. 2016)."""

    looks_back = False

    def reward(self, reward: Tensor, q: Tensor, action: Tensor) -> Tensor:
        return reward

    def value(self, later: Tensor, chooser: Tensor) -> Tensor:
        if later is chooser:
            return later.amax(dim=1)
        return taken(later, chooser.argmax(dim=1))


class Munchausen:
    """The softmax policy's, with its scaled log-policy in the reward (Vieillard et al. 2020)."""

    looks_back = True

    def __init__(self, alpha: float, temperature: float, clip: float) -> None:
        self._alpha, self._temperature, self._clip = alpha, temperature, clip

    def reward(self, reward: Tensor, q: Tensor, action: Tensor) -> Tensor:
        return munchausen_reward(reward, q, action, self._alpha, self._temperature, self._clip)

    def value(self, later: Tensor, chooser: Tensor) -> Tensor:
        return munchausen_value(later, chooser, self._temperature)


def traces(config: AgentConfig, greedy: Tensor) -> Tensor:
    """How much of the return behind each step goes into that of the step before, as ``multi_step`` says, float32.

    Args:
        greedy: bool, of any shape: the action taken is the best one now.
    """
    if config.multi_step == "retrace":
        return config.trace_lambda * greedy
    return torch.full(greedy.shape, config.trace_lambda, device=greedy.device)


def targets_of(config: AgentConfig) -> Targets:
    """Those that ``config`` asks for.

    Raises:
        AgentError: Munchausen's with a setting for which they are not defined.
    """
    if not config.munchausen:
        return Greedy()
    beyond = {
        "--double: its soft target has no best action for another network to choose": config.double,
        "--distribution categorical: its mixture is over values and quantiles": config.distribution == "categorical",
        f"--n-step {config.n_step}, as every reward on the way would need its own log-policy: set --n-step 1": (
            config.n_step > 1
        ),
        f"--anneal-horizon and --n-step-start {config.n_step_start}, for the same reason: set --n-step-start 1": (
            longest(config) > 1
        ),
    }
    for reason, refused in beyond.items():
        if refused:
            raise AgentError(f"{config.agent}: --munchausen does not go with {reason}")
    if not config.munchausen_temperature > 0.0 or config.munchausen_clip > 0.0:
        raise AgentError(
            f"{config.agent}: --munchausen-temperature is positive and --munchausen-clip at most 0, not "
            f"{config.munchausen_temperature:g} and {config.munchausen_clip:g}"
        )
    return Munchausen(config.munchausen_alpha, config.munchausen_temperature, config.munchausen_clip)
