"""Adam and centred RMSProp over one flat parameter vector, with their state as named vectors.

Adam's arithmetic is PyTorch's (``torch.optim``, functional form). State lives in vectors laid out like the parameters,
so that a checkpoint names it and a parameter server can own any part of it.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from apexrl.config import AgentConfig
from apexrl.errors import ConfigError

ADAM_BETA2 = 0.999  # Kingma & Ba 2015, the paper's and PyTorch's


class Optimizer(Protocol):
    """Changes ``vector`` by a gradient of the same size."""

    state: dict[str, Tensor]  # name -> float32 [size]
    steps: Tensor  # float32 scalar, updates made

    def step(self, vector: Tensor, gradient: Tensor) -> None: ...


def make_optimizer(config: AgentConfig, vector: Tensor, learning_rate: float = 0.0) -> Optimizer:
    """The optimizer that ``config`` names, for parameters like ``vector``; ``learning_rate`` 0: that of ``config``.

    Raises:
        ConfigError: another name, or a step size that is not positive.
    """
    learning_rate = learning_rate or config.learning_rate
    if not learning_rate > 0.0:
        raise ConfigError(f"learning_rate is {learning_rate}; it must be positive")
    kind: Literal["adam", "rmsprop"] = config.optimizer
    if kind == "adam":
        return Adam(vector, learning_rate, config.optimizer_eps, config.first_moment_decay)
    if kind == "rmsprop":
        return CentredRMSProp(vector, learning_rate, config.optimizer_eps, config.rmsprop_decay)
    raise ConfigError(f"there is no optimizer {kind!r}; use 'adam' or 'rmsprop'")


class Adam:
    """Kingma & Ba 2015, algorithm 1; one kernel per step."""

    def __init__(self, vector: Tensor, learning_rate: float, eps: float, beta1: float = 0.9) -> None:
        self._learning_rate, self._eps, self._beta1 = learning_rate, eps, beta1
        self.state = {"first_moment": torch.zeros_like(vector), "second_moment": torch.zeros_like(vector)}
        self.steps = torch.zeros((), device=vector.device)

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        adam(
            [vector],
            [gradient],
            [self.state["first_moment"]],
            [self.state["second_moment"]],
            [],
            [self.steps],
            fused=True,
            foreach=False,
            amsgrad=False,
            beta1=self._beta1,
            beta2=ADAM_BETA2,
            lr=self._learning_rate,
            weight_decay=0.0,
            eps=self._eps,
            maximize=False,
        )


class CentredRMSProp:
    """Graves 2013, equations 38-45, without momentum: θ −= η·g / √(v − m² + ε).

    ε stands inside the root, as there and in TensorFlow, where Ape-X's and DQN's values come from. PyTorch adds it
    outside, where 1.5e-7 would hardly be anything.
    """

    def __init__(self, vector: Tensor, learning_rate: float, eps: float, decay: float) -> None:
        self._learning_rate, self._eps, self._decay = learning_rate, eps, decay
        self.state = {"square_average": torch.zeros_like(vector), "gradient_average": torch.zeros_like(vector)}
        self.steps = torch.zeros(())  # counted on the CPU

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        square, mean = self.state["square_average"], self.state["gradient_average"]
        square.mul_(self._decay).addcmul_(gradient, gradient, value=1.0 - self._decay)
        mean.lerp_(gradient, 1.0 - self._decay)
        spread = torch.addcmul(square, mean, mean, value=-1.0).clamp_(min=0.0)  # rounding may leave it below
        vector.addcdiv_(gradient, spread.add_(self._eps).sqrt_(), value=-self._learning_rate)
        self.steps += 1
