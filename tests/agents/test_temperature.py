from __future__ import annotations

import pytest
import torch

from apexrl.agents.temperature import Temperature
from apexrl.config import AgentConfig


def test_alphas_adam_is_its_own() -> None:
    """β1 of 0.9 whatever the networks' is, and Adam where theirs is RMSProp."""
    config = AgentConfig(first_moment_decay=0.3, optimizer="rmsprop", temperature_learning_rate=2e-3)
    temperature = Temperature(config, -2.0, torch.device("cpu"))
    log_alpha = torch.zeros((), requires_grad=True)
    adam = torch.optim.Adam([log_alpha], config.temperature_learning_rate, (0.9, 0.999))
    for excess in (1.0, -3.0, 0.5):
        temperature.step(temperature.gradient(torch.full((4,), 2.0 + excess)))
        log_alpha.grad = torch.tensor(-excess)
        adam.step()
    assert float(temperature.trained.network.log.detach()) == pytest.approx(float(log_alpha.detach()), rel=1e-4)
