from __future__ import annotations

from typing import Protocol

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from apexrl.agents.optimizer import SGD, AdaGrad, Adam, Optimizer, RMSProp, make_optimizer
from apexrl.config import AgentConfig
from apexrl.errors import ConfigError

RNG = np.random.default_rng(4)


def test_centred_rmsprop_has_epsilon_inside_the_root() -> None:
    """Graves 2013, equations 38-45, in float64 beside it."""
    rate, eps, decay = 6.25e-5, 1.5e-7, 0.95
    start = RNG.standard_normal(64)
    vector = torch.from_numpy(start.astype(np.float32))
    optimizer = RMSProp(vector, rate, eps, decay)
    expected, square, mean = start.copy(), np.ones(64), np.zeros(64)
    for _ in range(20):
        gradient = RNG.standard_normal(64)
        square = decay * square + (1 - decay) * gradient**2
        mean = decay * mean + (1 - decay) * gradient
        expected -= rate * gradient / np.sqrt(square - mean**2 + eps)
        optimizer.step(vector, torch.from_numpy(gradient.astype(np.float32)))
    moved = expected - start
    np.testing.assert_allclose(vector.numpy() - start, moved, rtol=1e-3, atol=3e-7)
    assert float(optimizer.steps) == 20.0


def test_a_small_first_gradient_moves_little() -> None:
    vector = torch.zeros(1)
    RMSProp(vector, 6.25e-5, 1.5e-7, 0.95).step(vector, torch.full((1,), 1e-5))
    assert -float(vector) == pytest.approx(6.25e-5 * 1e-5 / np.sqrt(0.95), rel=1e-3)


def test_a_gradient_that_never_changes_stays_finite() -> None:
    vector = torch.zeros(3)
    optimizer = RMSProp(vector, 1e-3, 1.5e-7, 0.95)
    for _ in range(2000):
        optimizer.step(vector, torch.tensor([1e4, -3.7, 1e-4]))  # v − m² is 0 but for rounding, of either sign
    assert torch.isfinite(vector).all()


class Rule(Protocol):
    def __call__(self, parameters: NDArray[np.float64], gradient: NDArray[np.float64]) -> None: ...


def beside(optimizer: Optimizer, rule: Rule, steps: int = 20) -> None:
    """What an optimizer does, and what ``rule`` does to float64 parameters in place."""
    start = RNG.standard_normal(64)
    vector, expected = torch.from_numpy(start.astype(np.float32)), start.copy()
    for _ in range(steps):
        gradient = RNG.standard_normal(64)
        optimizer.step(vector, torch.from_numpy(gradient.astype(np.float32)))
        rule(expected, gradient)
    np.testing.assert_allclose(vector.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected - start).max() > 0.01
    assert float(optimizer.steps) == steps


def test_the_first_step_of_rmsprop_with_epsilon_inside_the_root() -> None:
    """g 0.1, ρ 0.99, ε 0.1, η 7e-4, v = 1 before, as in TensorFlow; from v = 0 on it would be 2.2125e-4."""
    vector = torch.zeros(1)
    RMSProp(vector, 7e-4, 0.1, 0.99, centered=False).step(vector, torch.full((1,), 0.1))
    assert -float(vector) == pytest.approx(6.7045e-5, rel=1e-4)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop_plain_and_centred_with_and_without_momentum(centered: bool, momentum: float) -> None:
    square, mean, moving = np.ones(64), np.zeros(64), np.zeros(64)

    def rule(parameters: NDArray[np.float64], gradient: NDArray[np.float64]) -> None:
        square[:] = 0.9 * square + 0.1 * gradient**2
        mean[:] = 0.9 * mean + 0.1 * gradient
        moving[:] = momentum * moving + gradient / np.sqrt(square - centered * mean**2 + 0.01)
        parameters -= 0.01 * moving

    optimizer = RMSProp(torch.zeros(64), 0.01, 0.01, 0.9, centered, momentum)
    names = ["square_average", *["gradient_average"] * centered, *["momentum"] * bool(momentum)]
    assert list(optimizer.state) == names
    beside(optimizer, rule)


def test_adagrad_divides_by_all_there_was() -> None:
    total = np.zeros(64)

    def rule(parameters: NDArray[np.float64], gradient: NDArray[np.float64]) -> None:
        total[:] += gradient**2
        parameters -= 0.05 * gradient / (np.sqrt(total) + 1e-3)

    beside(AdaGrad(torch.zeros(64), 0.05, 1e-3), rule)


def test_adagrad_is_pytorchs() -> None:
    start = torch.from_numpy(RNG.standard_normal(32).astype(np.float32))
    vector, parameter = start.clone(), torch.nn.Parameter(start.clone())
    mine, theirs = AdaGrad(vector, 0.05, 1e-8), torch.optim.Adagrad([parameter], 0.05, eps=1e-8)
    for _ in range(5):
        parameter.grad = torch.from_numpy(RNG.standard_normal(32).astype(np.float32))
        mine.step(vector, parameter.grad.clone())
        theirs.step()
    torch.testing.assert_close(vector, parameter.detach())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_with_momentum_follows_a_running_mean(momentum: float) -> None:
    mean = np.zeros(64)

    def rule(parameters: NDArray[np.float64], gradient: NDArray[np.float64]) -> None:
        mean[:] = momentum * mean + (1.0 - momentum) * gradient
        parameters -= 0.05 * mean

    optimizer = SGD(torch.zeros(64), 0.05, momentum)
    assert bool(optimizer.state) == bool(momentum)
    beside(optimizer, rule)


def test_the_configuration_names_it() -> None:
    vector = torch.zeros(3)
    for name, kind in (("adam", Adam), ("rmsprop", RMSProp), ("adagrad", AdaGrad), ("sgd", SGD)):
        assert type(make_optimizer(AgentConfig(optimizer=name), vector)) is kind  # type: ignore[arg-type]
    assert "gradient_average" in make_optimizer(AgentConfig(optimizer="rmsprop"), vector).state
    plain = AgentConfig(optimizer="rmsprop", centered=False, momentum=0.5)
    assert make_optimizer(plain, vector).state.keys() == {"square_average", "momentum"}
    with pytest.raises(ConfigError, match="there is no optimizer 'lion'"):
        make_optimizer(AgentConfig(optimizer="lion"), vector)  # type: ignore[arg-type]


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
