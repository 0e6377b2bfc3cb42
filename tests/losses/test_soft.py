"""Entropy-regularised losses against numbers worked out by hand, torch.distributions and autograd."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from apexrl.errors import SpecError
from apexrl.losses import (
    critics_loss,
    policy_loss,
    probabilities,
    soft_categorical_target,
    soft_target,
    soft_value,
    temperature_loss,
    truncated_target,
)
from apexrl.networks.squashed_gaussian import LOG_STD_MAX, LOG_STD_MIN, gaussian, squash, tanh_correction


def floats(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


HALF = floats(0.5)
ONES = torch.ones(4)


# The squashed Gaussian


def test_density_of_a_squashed_standard_normal() -> None:
    action, log_prob = squash(floats([[0.0]]), floats([[0.0]]), floats([[0.5]]))
    assert float(action) == pytest.approx(0.462117, abs=1e-6)
    assert float(log_prob) == pytest.approx(-0.803710, abs=1e-6)
    assert float(log_prob) - math.log(2.0) == pytest.approx(-1.496857, abs=1e-6)  # of an action twice as wide


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_correction_is_exact_far_out(dtype: torch.dtype) -> None:
    u = torch.tensor([10.0, -10.0, 0.0, 50.0, -50.0], dtype=dtype)
    # log(1 − tanh²u) → 2·log 2 − 2|u|; the form with 1e-6 inside the logarithm says −13.8073 at ±10
    expected = torch.tensor([-18.613706, -18.613706, 0.0, -98.613706, -98.613706], dtype=dtype)
    torch.testing.assert_close(tanh_correction(u), expected, rtol=1e-6, atol=1e-6)


def test_density_is_that_of_pytorchs_distributions() -> None:
    generator = torch.Generator().manual_seed(1)
    mean, log_std, noise = (torch.randn(3, 64, 4, generator=generator, dtype=torch.float64) * 0.7).unbind()
    action, log_prob = squash(mean, log_std, noise)
    normal = torch.distributions.Normal(mean, log_std.exp())
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
    torch.testing.assert_close(log_prob, squashed.log_prob(action).sum(dim=1), rtol=1e-6, atol=1e-6)


def test_gradients_are_those_of_the_formula_written_out() -> None:
    """∂/∂μ and ∂/∂log σ of log π(tanh(μ + σε)) and of the action, from the Gaussian's own density."""
    generator = torch.Generator().manual_seed(2)
    mean, log_std, noise = torch.randn(3, 8, 3, generator=generator, dtype=torch.float64).unbind()
    parameters = [mean.requires_grad_(), log_std.requires_grad_()]
    action, log_prob = squash(mean, log_std, noise)
    found = torch.autograd.grad((log_prob + action.square().sum(dim=1)).sum(), parameters)
    std = log_std.exp()
    u = mean + std * noise
    density = -0.5 * ((u - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
    written_out = (density - torch.log(1 - torch.tanh(u).square())).sum(dim=1)
    expected = torch.autograd.grad((written_out + torch.tanh(u).square().sum(dim=1)).sum(), parameters)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two)


def test_log_std_is_held_in_its_range() -> None:
    mean, log_std = gaussian(floats([[1.0, 2.0, -100.0, 100.0]]))
    assert mean.tolist() == [[1.0, 2.0]]
    assert log_std.tolist() == [[LOG_STD_MIN, LOG_STD_MAX]]
    action, log_prob = squash(mean, log_std, floats([[3.0, -3.0]]))
    assert torch.isfinite(action).all()
    assert torch.isfinite(log_prob).all()


# Losses


def test_soft_target() -> None:
    # 1 + 0.9·(min(3, 2) − 0.5·(−1.2)) and, after a termination, the reward alone
    next_q = floats([[3.0, 7.0], [2.0, 9.0]])
    target = soft_target(floats([1.0, 4.0]), floats([0.9, 0.0]), next_q, floats([-1.2, 0.3]), HALF)
    torch.testing.assert_close(target, floats([3.34, 4.0]))


def test_soft_target_carries_no_gradient() -> None:
    next_q, log_prob = floats([[1.0], [2.0]]).requires_grad_(), floats([-1.0]).requires_grad_()
    temperature = floats(0.2).requires_grad_()
    assert not soft_target(floats([1.0]), floats([0.9]), next_q, log_prob, temperature).requires_grad


def test_critics_loss_is_summed_over_critics_and_weighted() -> None:
    # ½·mean(1·1, 0.5·4) + ½·mean(0, 0.5·16)
    delta, weights = floats([[1.0, -2.0], [0.0, 4.0]]), floats([1.0, 0.5])
    torch.testing.assert_close(critics_loss(delta, weights), floats(0.75 + 2.0))
    # κ = 1: mean(½, 0.5·1.5) + mean(0, 0.5·3.5)
    torch.testing.assert_close(critics_loss(delta, weights, 1.0), floats(0.625 + 0.875))


def test_truncation_leaves_out_the_greatest_of_all_critics_together() -> None:
    """Two critics of three quantiles, one of each left out: both of them may be of one critic."""
    quantiles = floats([[[3.0, 1.0, 2.0], [0.0, 9.0, 8.0]], [[7.0, 4.0, 5.0], [1.0, 2.0, 3.0]]])  # [K 2, B 2, M 3]
    found = truncated_target(floats([10.0, 0.5]), floats([0.5, 0.0]), quantiles, floats([2.0, 4.0]), HALF, 1)
    # of row 1: 1, 2, 3, 4 without 5 and 7; α·log π is 1. Behind a termination nothing but the reward counts
    torch.testing.assert_close(found, floats([[10.0, 10.5, 11.0, 11.5], [0.5] * 4]))
    whole = truncated_target(floats([10.0, 0.5]), floats([0.5, 0.5]), quantiles, floats([2.0, 4.0]), HALF, 0)
    torch.testing.assert_close(whole[1], 0.5 + 0.5 * (floats([0.0, 1.0, 2.0, 3.0, 8.0, 9.0]) - 2.0))
    assert not whole.requires_grad


def test_the_soft_categorical_target_is_of_the_critic_whose_mean_is_the_smallest() -> None:
    support = floats([-1.0, 0.0, 1.0])
    probabilities = floats([[[0.0, 0.0, 1.0], [0.5, 0.5, 0.0]], [[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]]])  # [K 2, B 2, N 3]
    found = soft_categorical_target(
        floats([0.25, 0.0]), floats([0.5, 1.0]), probabilities, floats([-1.0, 1.0]), HALF, support
    )
    # row 1: the second critic; 0.25 + 0.5·(z + 0.5) = 0.5 and 1. Row 2: the first; z − 0.5 = −1.5 (cut) and −0.5
    torch.testing.assert_close(found, floats([[0.0, 0.25, 0.75], [0.75, 0.25, 0.0]]))
    with pytest.raises(SpecError, match="probabilities"):
        soft_categorical_target(ONES, ONES, torch.ones(2, 4, 3), ONES, HALF, torch.ones(5))


def test_policy_loss_by_hand() -> None:
    q = floats([1.0, 3.0]).requires_grad_()
    log_prob = floats([-0.5, 1.5]).requires_grad_()
    loss = policy_loss(q, log_prob, floats(0.2).requires_grad_())
    torch.testing.assert_close(loss.detach(), floats((0.2 * -0.5 - 1.0 + 0.2 * 1.5 - 3.0) / 2))
    of_q, of_log_prob = torch.autograd.grad(loss, [q, log_prob])
    torch.testing.assert_close(of_q, floats([-0.5, -0.5]))
    torch.testing.assert_close(of_log_prob, floats([0.1, 0.1]))


@pytest.mark.parametrize("target", [-1.0, 0.3])
def test_temperature_loss(target: float) -> None:
    log_alpha, log_prob = floats(0.4).requires_grad_(), floats([-2.0, 0.5, -0.1])
    expected = -log_alpha * (log_prob + target).mean()
    torch.testing.assert_close(temperature_loss(log_alpha, log_prob, target), expected)


def test_temperature_falls_while_the_entropy_is_above_its_target() -> None:
    log_alpha = floats(0.4).requires_grad_()
    for log_prob, sign in ((floats([-2.0, -2.0]), 1.0), (floats([-0.5, -0.5]), -1.0)):  # entropy 2: descent lowers α
        (slope,) = torch.autograd.grad(temperature_loss(log_alpha, log_prob, target_entropy=1.0), log_alpha)
        assert float(slope.sign()) == sign


def test_soft_value_is_an_expectation_over_all_actions() -> None:
    log_probs = floats([[0.25, 0.75]]).log()
    q = floats([[[1.0, 4.0]], [[2.0, 3.0]]])
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    torch.testing.assert_close(soft_value(q, log_probs, HALF), floats([0.25 * 1.0 + 0.75 * 3.0 + 0.5 * entropy]))


def test_the_softmax_of_values_maximises_the_soft_value() -> None:
    q = floats([[[0.3, -1.0, 2.0]]])
    best = torch.log_softmax(q[0] / 0.5, dim=1)
    value = soft_value(q, best, HALF)
    torch.testing.assert_close(value, 0.5 * torch.logsumexp(q[0] / 0.5, dim=1))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        other = torch.log_softmax(torch.randn(1, 3, generator=generator, dtype=torch.float64), dim=1)
        assert float(soft_value(q, other, HALF)) <= float(value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: soft_target(torch.ones(3), torch.ones(3), torch.ones(2, 4), torch.ones(4), HALF), "reward"),
        (lambda: soft_target(torch.ones(4), torch.ones(4), torch.ones(4), torch.ones(4), HALF), "next_q"),
        (lambda: critics_loss(torch.ones(2, 4), torch.ones(2)), "weights"),
        (lambda: truncated_target(torch.ones(3), ONES, torch.ones(2, 4, 5), ONES, HALF, 1), "reward"),
        (lambda: truncated_target(ONES, ONES, torch.ones(4, 5), ONES, HALF, 1), "next_quantiles"),
        (lambda: policy_loss(torch.ones(4), torch.ones(4, 1), HALF), "log_prob"),
        (lambda: temperature_loss(HALF, torch.ones(4, 1), 1.0), "log_prob"),
        (lambda: soft_value(torch.ones(2, 4, 3), torch.ones(4, 2), HALF), "log_probs"),
        (lambda: soft_value(torch.ones(2, 4, 3, dtype=torch.int64), torch.ones(4, 3), HALF), "q is"),
    ],
)
def test_other_shapes_are_refused(call: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


def test_probabilities_are_exact_where_actions_are_masked() -> None:
    log_probs = torch.log_softmax(torch.tensor([[0.3, -2.0, -1e30, 5.0, -60.0]]), dim=1)
    torch.testing.assert_close(probabilities(log_probs), log_probs.exp(), rtol=1e-5, atol=0.0)
    assert float(probabilities(log_probs)[0, 2]) == 0.0
    assert float((probabilities(log_probs) * log_probs)[0, 2]) == 0.0
