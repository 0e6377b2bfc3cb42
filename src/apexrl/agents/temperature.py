"""SAC's temperature α, the weight of the entropy: fixed or learned (Haarnoja et al. 2018b, section 5)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from apexrl.agents.trained_network import Trained
from apexrl.config import AgentConfig
from apexrl.errors import ConfigError
from apexrl.losses import temperature_loss


class LogTemperature(nn.Module):
    """log α as a parameter."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(value)))


class Temperature:
    """α with its own Adam, whose β1 stays 0.9 whatever the networks' is (as in SB3, and in CrossQ's code).

    Its ε is the networks' where theirs is Adam too; another optimizer's means something else.

    Args:
        config: ``temperature`` > 0 fixes α; 0 learns it from ``initial_temperature`` on.
        target_entropy: nats that the policy's entropy is steered to.
        name: of its group of parameters.

    Raises:
        ConfigError: a temperature is not positive.
    """

    def __init__(
        self, config: AgentConfig, target_entropy: float, device: torch.device, name: str = "temperature"
    ) -> None:
        if config.temperature < 0.0 or not config.initial_temperature > 0.0:
            raise ConfigError(
                f"--temperature {config.temperature:g} must be positive, or 0 to be learned, and --initial-temperature "
                f"{config.initial_temperature:g} positive"
            )
        self._learned = config.temperature == 0.0
        self._target_entropy = target_entropy
        module = LogTemperature(config.temperature or config.initial_temperature).to(device)
        eps = config.optimizer_eps if config.optimizer == "adam" else AgentConfig().optimizer_eps
        own = replace(config, optimizer="adam", optimizer_eps=eps, first_moment_decay=0.9, second_moment_decay=0.999)
        self.trained = Trained(name, module, own, config.temperature_learning_rate)

    @property
    def value(self) -> Tensor:
        """α, a float32 scalar on the device, without gradient."""
        return self.trained.network.log.detach().exp()

    def loss(self, log_prob: Tensor) -> Tensor:
        """The loss of α, a scalar, from log π [B] of actions that the policy chose."""
        return temperature_loss(self.trained.network.log, log_prob, self._target_entropy)

    def gradient(self, log_prob: Tensor) -> Tensor:
        """∂ ``loss`` / ∂log α as a flat vector; zero where α is fixed."""
        gradient = self.trained.gradient
        if self._learned:
            (gradient[0],) = torch.autograd.grad(self.loss(log_prob), self.trained.network.log)
        return gradient

    def step(self, gradient: Tensor) -> None:
        """One step of its optimizer; none where α is fixed."""
        if self._learned:
            self.trained.step(gradient)
