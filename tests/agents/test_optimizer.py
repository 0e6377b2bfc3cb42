from __future__ import annotations

import numpy as np
import pytest
import torch

from apexrl.agents.optimizer import Adam, CentredRMSProp, make_optimizer
from apexrl.config import AgentConfig
from apexrl.errors import ConfigError

RNG = np.random.default_rng(4)


def test_centred_rmsprop_has_epsilon_inside_the_root() -> None:
    """Graves 2013, equations 38-45, in float64 beside it."""
    rate, eps, decay = 6.25e-5, 1.5e-7, 0.95
    start = RNG.standard_normal(64)
    vector = torch.from_numpy(start.astype(np.float32))
    optimizer = CentredRMSProp(vector, rate, eps, decay)
    expected, square, mean = start.copy(), np.zeros(64), np.zeros(64)
    for _ in range(20):
        gradient = RNG.standard_normal(64) * 1e-3
        square = decay * square + (1 - decay) * gradient**2
        mean = decay * mean + (1 - decay) * gradient
        expected -= rate * gradient / np.sqrt(square - mean**2 + eps)
        optimizer.step(vector, torch.from_numpy(gradient.astype(np.float32)))
    moved = expected - start
    np.testing.assert_allclose(vector.numpy() - start, moved, rtol=2e-2, atol=3e-7)
    assert float(optimizer.steps) == 20.0


def test_a_small_first_gradient_moves_little() -> None:
    vector = torch.zeros(1)
    CentredRMSProp(vector, 6.25e-5, 1.5e-7, 0.95).step(vector, torch.full((1,), 1e-5))
    assert -float(vector) == pytest.approx(6.25e-5 * 1e-5 / np.sqrt(0.05e-10 - 0.0025e-10 + 1.5e-7), rel=1e-3)


def test_a_gradient_that_never_changes_stays_finite() -> None:
    vector = torch.zeros(3)
    optimizer = CentredRMSProp(vector, 1e-3, 1.5e-7, 0.95)
    for _ in range(2000):
        optimizer.step(vector, torch.tensor([1e4, -3.7, 1e-4]))  # v − m² is 0 but for rounding, of either sign
    assert torch.isfinite(vector).all()


def test_adam_is_pytorchs() -> None:
    start = torch.from_numpy(RNG.standard_normal(32).astype(np.float32))
    vector, parameter = start.clone(), torch.nn.Parameter(start.clone())
    mine, theirs = Adam(vector, 1e-3, 1e-8, 0.5), torch.optim.Adam([parameter], 1e-3, betas=(0.5, 0.999), eps=1e-8)
    for _ in range(5):
        gradient = torch.from_numpy(RNG.standard_normal(32).astype(np.float32))
        parameter.grad = gradient.clone()
        theirs.step()
        mine.step(vector, gradient)
    torch.testing.assert_close(vector, parameter.detach(), rtol=1e-6, atol=1e-7)


def test_a_step_size_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ConfigError, match="learning_rate"):
        make_optimizer(AgentConfig(learning_rate=-1.0), torch.zeros(1))
