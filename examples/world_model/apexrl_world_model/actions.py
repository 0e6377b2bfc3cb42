"""The environment's actions as the model sees them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from apexrl.errors import AgentError
from apexrl.spec import ActionSpec, Array


class Actions:
    """A box as numbers in −1 … 1; one of n as n numbers, of which the greatest is chosen: the model sees it one-hot.

    Raises:
        AgentError: the actions are neither, or the box has no bounds.
    """

    def __init__(self, spec: ActionSpec) -> None:
        self.discrete = spec.discrete
        if spec.discrete:
            self.size = spec.n
        elif spec.box and np.isfinite(spec.low).all() and np.isfinite(spec.high).all():
            self.size, self._shape = int(np.prod(spec.shape)), spec.shape
            self._middle, self._half = (spec.high + spec.low) / 2, (spec.high - spec.low) / 2
        else:
            raise AgentError("world_model takes Discrete actions, or a Box with finite bounds")

    def seen(self, numbers: Tensor) -> Tensor:
        """What the model sees of an agent's numbers [..., size]; gradients pass as if nothing were chosen."""
        if not self.discrete:
            return numbers.clamp(-1, 1)
        chosen = one_hot(numbers.argmax(-1), self.size).to(numbers.dtype)
        return chosen + numbers - numbers.detach()

    def recorded(self, actions: Tensor) -> Tensor:
        """What the model sees of actions in a batch, [..., *shape]."""
        if self.discrete:
            return one_hot(actions, self.size).float()
        middle, half = (torch.from_numpy(x).to(actions.device) for x in (self._middle, self._half))
        return ((actions - middle) / half).flatten(-len(self._shape))

    def to_env(self, numbers: Tensor) -> Array:
        """The actions [B, *shape] of numbers [B, size]."""
        if self.discrete:
            return numbers.argmax(-1).numpy()
        return (numbers.clamp(-1, 1).numpy().reshape(-1, *self._shape) * self._half + self._middle).astype(np.float32)
