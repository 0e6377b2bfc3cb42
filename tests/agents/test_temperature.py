from __future__ import annotations

import pytest
import torch

from apexrl.agents.temperature import Temperature
from apexrl.config import AgentConfig


def test_alphas_adam_is_its_own() -> None:
    """β1 of 0.9 whatever the networks' is, and Adam with its own ε where theirs is RMSProp."""
    config = AgentConfig(first_moment_decay=0.3, optimizer="rmsprop", optimizer_eps=0.01, temperature_learning_rate=0.2)
    check_against_adam(config, 1e-8)


def test_networks_that_have_adam_lend_it_their_epsilon() -> None:
    check_against_adam(AgentConfig(optimizer_eps=0.01, temperature_learning_rate=0.2), 0.01)


def check_against_adam(config: AgentConfig, eps: float) -> None:
    temperature = Temperature(config, -2.0, torch.device("cpu"))
    log_alpha = torch.zeros((), requires_grad=True)
    adam = torch.optim.Adam([log_alpha], config.temperature_learning_rate, (0.9, 0.999), eps)
    for excess in (0.01, -0.03, 0.005):  # small, so that ε counts
        temperature.step(temperature.gradient(torch.full((4,), 2.0 + excess)))
        log_alpha.grad = torch.tensor(-excess)
        adam.step()
    assert float(temperature.trained.network.log.detach()) == pytest.approx(float(log_alpha.detach()), rel=1e-4)
