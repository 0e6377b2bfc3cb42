"""C51's and QR-DQN's losses against worked numbers, a plain loop, rlax's fixture and autograd."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from apexrl.errors import SpecError
from apexrl.losses import (
    categorical_divergence,
    categorical_projection,
    quantile_gradient,
    quantile_loss,
    sorted_quantile_loss,
)


def floats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        (0.5, 0.9, (0.03, 0.15, 0.32, 0.32, 0.18)),
        (0.25, 0.0, (0.0, 0.0, 0.75, 0.25, 0.0)),  # terminal
        (1.0, 0.0, (0.0, 0.0, 0.0, 1.0, 0.0)),  # terminal, on an atom: nothing is lost
        (5.0, 0.9, (0.0, 0.0, 0.0, 0.0, 1.0)),  # beyond the support
        (1.0, 1.0, (0.0, 0.1, 0.2, 0.4, 0.3)),  # every atom on another
    ],
)
def test_the_five_cases_of_c51(reward: float, discount: float, expected: tuple[float, ...]) -> None:
    probabilities = floats(0.1, 0.2, 0.4, 0.2, 0.1)[None]
    found = categorical_projection(floats(reward), floats(discount), probabilities, torch.linspace(-2, 2, 5).double())
    torch.testing.assert_close(found, floats(*expected)[None])


def test_the_mean_that_the_support_cuts() -> None:
    support = torch.linspace(-2, 2, 5).double()
    found = categorical_projection(floats(0.5), floats(0.9), floats(0.1, 0.2, 0.4, 0.2, 0.1)[None], support)
    assert float(found @ support) == pytest.approx(0.47)  # 0.5 without the cut


def project(reward: float, discount: float, probabilities: Tensor, support: Tensor) -> Tensor:
    """Algorithm 1 of Bellemare et al. 2017 as it stands there, with l = u seen to."""
    n, found = len(support), torch.zeros_like(support)
    low, high = float(support[0]), float(support[-1])
    for p, z in zip(probabilities.tolist(), support.tolist(), strict=True):
        b = (min(max(reward + discount * z, low), high) - low) / ((high - low) / (n - 1))
        lower = min(math.floor(b), n - 1)
        upper = min(math.ceil(b), n - 1)
        found[lower] += p * (upper - b) if upper > lower else p
        if upper > lower:
            found[upper] += p * (b - lower)
    return found


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    atoms=st.integers(2, 60),
    reward=st.floats(-30, 30),
    discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    low=st.floats(-20, 5),
    width=st.floats(0.5, 100),
)
def test_the_projection_is_the_papers(
    seed: int, atoms: int, reward: float, discount: float, low: float, width: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.softmax(torch.randn(3, atoms, generator=generator, dtype=torch.float64), dim=1)
    support = torch.linspace(low, low + width, atoms, dtype=torch.float64)
    rewards = torch.full((3,), reward, dtype=torch.float64)
    found = categorical_projection(rewards, torch.full_like(rewards, discount), probabilities, support)
    expected = torch.stack([project(reward, discount, row, support) for row in probabilities])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("atoms", [51, 101])
def test_single_precision_loses_no_mass_at_the_edges(atoms: int) -> None:
    """(v_max − v_min)/Δ is a little more or less than N − 1 there."""
    for low, high in ((-10.0, 10.0), (0.0, 100.0), (-0.7, 0.3)):
        support = torch.linspace(low, high, atoms)
        reward = support.clone()
        p = torch.full((atoms, atoms), 1.0 / atoms)
        found = categorical_projection(reward, torch.zeros(atoms), p, support)
        torch.testing.assert_close(found, torch.eye(atoms), atol=2e-4, rtol=0)
        torch.testing.assert_close(found.sum(dim=1), torch.ones(atoms))
        assert (found >= 0).all()


def test_the_divergence_by_hand() -> None:
    logits = floats(0.0, math.log(3.0))[None]  # 1/4, 3/4
    assert float(categorical_divergence(logits, floats(0.5, 0.5)[None])) == pytest.approx(
        0.5 * math.log(2.0) + 0.5 * math.log(2.0 / 3.0)
    )
    assert float(categorical_divergence(logits, floats(0.0, 1.0)[None])) == pytest.approx(math.log(4.0 / 3.0))
    assert float(categorical_divergence(logits, floats(0.25, 0.75)[None])) == pytest.approx(0.0, abs=1e-12)


def test_the_divergence_is_never_negative() -> None:
    """A rounding error below zero would be refused as a priority."""
    logits = torch.randn(2000, 51, generator=torch.Generator().manual_seed(0))
    assert (categorical_divergence(logits, torch.softmax(logits, dim=1)) >= 0).all()


def test_the_divergences_gradient_is_the_cross_entropys() -> None:
    logits = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    target = torch.softmax(torch.randn(4, 7, dtype=torch.float64), dim=1)
    (found,) = torch.autograd.grad(categorical_divergence(logits, target).sum(), logits)
    torch.testing.assert_close(found, torch.softmax(logits.detach(), dim=1) - target)


def test_quantile_loss_by_hand() -> None:
    found = quantile_loss(floats(0.0, 1.0)[None], floats(0.25, 0.75), floats(0.5, 2.5)[None])
    torch.testing.assert_close(found, floats(0.65625))


@pytest.mark.parametrize(("huber", "expected"), [(0.0, 2.0), (2.0, 2.5 / 2.0)])
def test_quantile_loss_of_rlaxs_fixture(huber: float, expected: float) -> None:
    """rlax/_src/value_learning_test.py; it does not divide by κ, the paper does."""
    found = quantile_loss(floats(-1.0, 3.0)[None], floats(0.2, 0.7), floats(-3.0, 4.0, 2.0)[None], huber)
    torch.testing.assert_close(found, floats(expected))


def test_fractions_of_every_row() -> None:
    quantiles, targets = torch.randn(3, 4), torch.randn(3, 5)
    fractions = torch.rand(3, 4)
    found = quantile_loss(quantiles, fractions, targets)
    rows = [quantile_loss(quantiles[[i]], fractions[i], targets[[i]])[0] for i in range(3)]
    torch.testing.assert_close(found, torch.stack(rows))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 12),
    m=st.integers(1, 12),
    huber=st.floats(0.1, 3.0),
    own=st.booleans(),
)
def test_the_quantile_gradient_is_autograds(seed: int, n: int, m: int, huber: float, own: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    quantiles = torch.randn(5, n, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = 2 * torch.randn(5, m, generator=generator, dtype=torch.float64)
    fractions = torch.rand((5, n) if own else (n,), generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad(quantile_loss(quantiles, fractions, targets, huber).sum(), quantiles)
    torch.testing.assert_close(quantile_gradient(quantiles.detach(), fractions, targets, huber), expected)


def test_targets_carry_no_gradient() -> None:
    target = torch.rand(2, 5, requires_grad=True)
    logits = torch.randn(2, 5, requires_grad=True)
    loss = categorical_divergence(logits, target).sum() + quantile_loss(logits, torch.rand(5), target).sum()
    assert torch.autograd.grad(loss, target, allow_unused=True) == (None,)
    projected = categorical_projection(torch.zeros(2), torch.ones(2), target, torch.linspace(0, 1, 5))
    assert not projected.requires_grad


def test_wrong_shapes_are_named() -> None:
    five, support = torch.full((2, 5), 0.2), torch.linspace(0, 1, 5)
    with pytest.raises(SpecError, match=r"reward has shape \(3,\); expected \(2\)"):
        categorical_projection(torch.zeros(3), torch.zeros(2), five, support)
    with pytest.raises(SpecError, match=r"probabilities has shape \(2, 4\); expected \(\*, 5\)"):
        categorical_projection(torch.zeros(2), torch.zeros(2), five[:, :4], support)
    with pytest.raises(SpecError, match=r"target has shape \(1, 5\)"):
        categorical_divergence(five, five[:1])
    with pytest.raises(SpecError, match=r"fractions has shape \(4,\); expected \(5\)"):
        quantile_loss(five, torch.rand(4), five)
    with pytest.raises(SpecError, match=r"targets has shape \(1, 5\); expected \(2, \*\)"):
        quantile_gradient(five, torch.rand(5), five[:1])


@pytest.mark.parametrize("huber", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("far", [0.0, 1e4])
def test_the_loss_of_sorted_targets_is_the_quantile_loss(huber: float, far: float) -> None:
    """And its gradient; near zero and far from it, in single precision, some quantiles beside all targets."""
    generator = torch.Generator().manual_seed(3)
    quantiles = far + 5.0 * torch.randn(6, 10, generator=generator)
    targets = far + 3.0 * torch.randn(6, 17, generator=generator).sort(dim=1).values
    targets[0] = far  # ties
    quantiles[0, 0] = far
    fractions = (torch.arange(10) + 0.5) / 10
    found, plain = quantiles.clone().requires_grad_(), quantiles.double().requires_grad_()
    losses = sorted_quantile_loss(found, fractions, targets, huber)
    expected = quantile_loss(plain, fractions.double(), targets.double(), huber)
    torch.testing.assert_close(losses.double(), expected, rtol=2e-5, atol=1e-6)
    (slope,), (wanted,) = torch.autograd.grad(losses.sum(), found), torch.autograd.grad(expected.sum(), plain)
    torch.testing.assert_close(slope.double(), wanted, rtol=1e-4, atol=1e-5)
