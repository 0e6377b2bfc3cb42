"""Plain-Python twins of the native structures: slow, obvious, and the oracle of the randomised tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def powered(priorities, alpha, eps):
    """(|δ| + eps)^alpha."""
    return (np.asarray(priorities, np.float64) + eps) ** alpha


def find_prefix(leaves, prefix):
    """First leaf whose running sum exceeds ``prefix``."""
    return int(np.searchsorted(np.cumsum(leaves), prefix, side="right"))


@dataclass
class Stream:
    """One environment's steps, and what every transition of it must look like."""

    stack: int
    n_step: int
    gamma: float
    observations: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    terminated: list = field(default_factory=list)
    truncated: list = field(default_factory=list)
    begins: list = field(default_factory=list)  # index of each step's episode start
    final: list = field(default_factory=list)  # whether a step is a final observation

    def append(self, observation, reward, terminated, truncated):
        before = len(self.observations) - 1
        after_end = before >= 0 and not self.final[before] and (self.terminated[before] or self.truncated[before])
        fresh = before < 0 or self.final[before]
        self.begins.append(len(self.observations) if fresh else self.begins[before])
        self.final.append(after_end)
        self.observations.append(observation)
        self.rewards.append(0.0 if after_end else reward)
        self.terminated.append(not after_end and terminated)
        self.truncated.append(not after_end and truncated)

    def stacked(self, t):
        """[stack, ...], oldest first; before the episode's start its first frame repeats."""
        return np.stack([self.observations[max(self.begins[t], t - k)] for k in reversed(range(self.stack))])

    def item(self, t):
        """(observation, next_observation, return, discount) of step t, or None while it is not complete."""
        if self.final[t]:
            return None
        value, factor = 0.0, 1.0
        for k in range(self.n_step):
            if t + k >= len(self.rewards):
                return None
            value += factor * self.rewards[t + k]
            factor *= self.gamma
            ended = self.terminated[t + k] or self.truncated[t + k]
            if ended or k == self.n_step - 1:
                if t + k + 1 >= len(self.observations):
                    return None
                discount = 0.0 if self.terminated[t + k] else factor
                return self.stacked(t), self.stacked(t + k + 1), value, discount
        return None

    def items(self):
        return {t: item for t in range(len(self.observations)) if (item := self.item(t)) is not None}
