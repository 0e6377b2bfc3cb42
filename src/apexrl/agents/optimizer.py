"""Adam, AdamW, RAdam, RMSProp, AdaGrad and SGD over one flat parameter vector, with their state as named vectors.

Adam's arithmetic is PyTorch's (``torch.optim``, functional form). State lives in vectors laid out like the parameters,
so that a checkpoint names it and a parameter server can own any part of it.
"""

from __future__ import annotations

from math import sqrt
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from apexrl.config import AgentConfig
from apexrl.errors import ConfigError

BETAS = (0.9, 0.999)  # Kingma & Ba 2015: decay of the first and of the second moment


class Optimizer(Protocol):
    """Changes ``vector`` by a gradient of the same size."""

    state: dict[str, Tensor]  # name -> float32 [size]
    steps: Tensor  # float32 scalar, updates made
    learning_rate: float  # of the next step

    def step(self, vector: Tensor, gradient: Tensor) -> None: ...


def make_optimizer(
    config: AgentConfig, vector: Tensor, learning_rate: float = 0.0, decayed: Tensor | None = None
) -> Optimizer:
    """The optimizer that ``config`` names, for parameters like ``vector``; ``learning_rate`` 0: that of ``config``.

    Args:
        decayed: which of the values ``adamw`` decays, bool like ``vector``; None: all.

    Raises:
        ConfigError: another name, or a step size that is not positive.
    """
    learning_rate = learning_rate or config.learning_rate
    if not learning_rate > 0.0:
        raise ConfigError(f"learning_rate is {learning_rate}; it must be positive")
    eps, momentum = config.optimizer_eps, config.momentum
    betas = (config.first_moment_decay, config.second_moment_decay)
    match config.optimizer:
        case "adam":
            return Adam(vector, learning_rate, eps, betas)
        case "adamw":
            share = torch.ones_like(vector) if decayed is None else decayed.to(vector.dtype)
            return AdamW(vector, learning_rate, eps, betas, config.weight_decay * share)
        case "radam":
            return RAdam(vector, learning_rate, eps, betas)
        case "rmsprop":
            return RMSProp(vector, learning_rate, eps, config.rmsprop_decay, config.centered, momentum)
        case "adagrad":
            return AdaGrad(vector, learning_rate, eps)
        case "sgd":
            return SGD(vector, learning_rate, momentum)
    raise ConfigError(
        f"there is no optimizer {config.optimizer!r}; use 'adam', 'adamw', 'radam', 'rmsprop', 'adagrad' or 'sgd'"
    )


class Adam:
    """Kingma & Ba 2015, algorithm 1; one kernel per step."""

    def __init__(self, vector: Tensor, learning_rate: float, eps: float, betas: tuple[float, float] = BETAS) -> None:
        self.learning_rate, self._eps, self._betas = learning_rate, eps, betas
        self.state = {"first_moment": torch.zeros_like(vector), "second_moment": torch.zeros_like(vector)}
        self.steps = torch.zeros((), device=vector.device)

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        _adam(vector, gradient, self.state, self.steps, self.learning_rate, self._eps, self._betas)


class AdamW:
    """Loshchilov & Hutter 2019 (arXiv 1711.05101), algorithm 2: Adam, and θ −= η·λ·θ beside it.

    Args:
        weight_decay: λ of every value, float32 like ``vector``.
    """

    def __init__(
        self, vector: Tensor, learning_rate: float, eps: float, betas: tuple[float, float], weight_decay: Tensor
    ) -> None:
        self.learning_rate, self._eps, self._betas, self._weight_decay = learning_rate, eps, betas, weight_decay
        self.state = {"first_moment": torch.zeros_like(vector), "second_moment": torch.zeros_like(vector)}
        self.steps = torch.zeros((), device=vector.device)

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        vector.addcmul_(vector, self._weight_decay, value=-self.learning_rate)
        _adam(vector, gradient, self.state, self.steps, self.learning_rate, self._eps, self._betas)


class RAdam:
    """Liu et al. 2020 (arXiv 1908.03265), algorithm 2: Adam whose step is r times as large, r rising to 1 as its second
    moment becomes known; before that, while ρ ≤ 5, η·m̂ (with PyTorch and optax; the paper: 4)."""

    def __init__(self, vector: Tensor, learning_rate: float, eps: float, betas: tuple[float, float] = BETAS) -> None:
        self.learning_rate, self._eps, self._betas = learning_rate, eps, betas
        self.state = {"first_moment": torch.zeros_like(vector), "second_moment": torch.zeros_like(vector)}
        self.steps = torch.zeros(())  # counted on the CPU

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        before = self.steps.clone()
        self.steps += 1
        t = float(self.steps)
        beta1, beta2 = self._betas
        most = 2.0 / (1.0 - beta2) - 1.0
        length = most - 2.0 * t * beta2**t / (1.0 - beta2**t)
        if length <= 5.0:
            first, second = self.state["first_moment"], self.state["second_moment"]
            first.lerp_(gradient, 1.0 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            vector.add_(first, alpha=-self.learning_rate / (1.0 - beta1**t))
            return
        rectified = sqrt((length - 4.0) * (length - 2.0) * most / ((most - 4.0) * (most - 2.0) * length))
        steps = before.to(vector.device)
        _adam(vector, gradient, self.state, steps, rectified * self.learning_rate, self._eps, self._betas)


def _adam(
    vector: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    steps: Tensor,
    learning_rate: float,
    eps: float,
    betas: tuple[float, float],
) -> None:
    """One step of Adam, which counts itself in ``steps``."""
    adam(
        [vector],
        [gradient],
        [state["first_moment"]],
        [state["second_moment"]],
        [],
        [steps],
        fused=True,
        foreach=False,
        amsgrad=False,
        beta1=betas[0],
        beta2=betas[1],
        lr=learning_rate,
        weight_decay=0.0,
        eps=eps,
        maximize=False,
    )


class RMSProp:
    """θ −= η·g / √(v + ε) with v = ρ·v + (1 − ρ)·g², or centred: v − m² + ε with m = ρ·m + (1 − ρ)·g.

    Centred: Graves 2013, equations 38-45; plain: Tieleman & Hinton 2012, as in Mnih et al. 2016, equation S2. ε stands
    inside the root, as there and in TensorFlow, where the values of Ape-X, DQN, A3C and IMPALA come from. PyTorch adds
    it outside, where 1.5e-7 would hardly be anything, and A3C's 0.1 much more than it was. v begins at 1, as in
    TensorFlow: from 0 on, the first step would be 1/√(1 − ρ) times η, whatever the gradient.

    Args:
        decay: ρ.
        momentum: μ; θ −= η·b with b = μ·b + g / √(…), as in TensorFlow.
    """

    def __init__(
        self,
        vector: Tensor,
        learning_rate: float,
        eps: float,
        decay: float,
        centered: bool = True,
        momentum: float = 0.0,
    ) -> None:
        self.learning_rate, self._eps, self._decay, self._momentum = learning_rate, eps, decay, momentum
        names = [*(["gradient_average"] * centered), *(["momentum"] * (momentum > 0.0))]
        self.state = {"square_average": torch.ones_like(vector)} | {name: torch.zeros_like(vector) for name in names}
        self.steps = torch.zeros(())  # counted on the CPU

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        square = self.state["square_average"]
        square.mul_(self._decay).addcmul_(gradient, gradient, value=1.0 - self._decay)
        if "gradient_average" in self.state:
            mean = self.state["gradient_average"]
            mean.lerp_(gradient, 1.0 - self._decay)
            spread = torch.addcmul(square, mean, mean, value=-1.0).clamp_(min=0.0)  # rounding may leave it below
            root = spread.add_(self._eps).sqrt_()
        else:
            root = torch.add(square, self._eps).sqrt_()
        if self._momentum:
            moving = self.state["momentum"]
            moving.mul_(self._momentum).addcdiv_(gradient, root)
            vector.add_(moving, alpha=-self.learning_rate)
        else:
            vector.addcdiv_(gradient, root, value=-self.learning_rate)
        self.steps += 1


class AdaGrad:
    """Duchi et al. 2011, figure 1: θ −= η·g / (√G + ε) with G = Σ g²."""

    def __init__(self, vector: Tensor, learning_rate: float, eps: float) -> None:
        self.learning_rate, self._eps = learning_rate, eps
        self.state = {"square_sum": torch.zeros_like(vector)}
        self.steps = torch.zeros(())

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        square = self.state["square_sum"]
        square.addcmul_(gradient, gradient)
        vector.addcdiv_(gradient, square.sqrt().add_(self._eps), value=-self.learning_rate)
        self.steps += 1


class SGD:
    """θ −= η·g; with momentum α, θ −= η·m with m = α·m + (1 − α)·g, as A3C has it (Mnih et al. 2016, section S1)."""

    def __init__(self, vector: Tensor, learning_rate: float, momentum: float = 0.0) -> None:
        self.learning_rate, self._momentum = learning_rate, momentum
        self.state = {"momentum": torch.zeros_like(vector)} if momentum else {}
        self.steps = torch.zeros(())

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        if self._momentum:
            gradient = self.state["momentum"].lerp_(gradient, 1.0 - self._momentum)
        vector.add_(gradient, alpha=-self.learning_rate)
        self.steps += 1
