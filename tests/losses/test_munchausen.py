"""Munchausen's target against worked numbers, and what it shares with plain Q-learning."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from apexrl.errors import SpecError
from apexrl.losses import munchausen_reward, munchausen_value, taken


def floats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("action", "expected"), [(0, 1.504816), (1, 1.522816)])
def test_the_target(action: int, expected: float) -> None:
    q, next_q = floats(1.0, 1.02)[None], floats(0.5, 0.53)[None]
    reward = munchausen_reward(floats(1.0), q, torch.tensor([action]))
    target = reward + 0.99 * munchausen_value(next_q, next_q)
    torch.testing.assert_close(target, floats(expected), atol=5e-7, rtol=0)


def test_the_soft_value_is_the_log_sum_exp() -> None:
    q = torch.randn(8, 5, dtype=torch.float64)
    torch.testing.assert_close(munchausen_value(q, q, 0.3), 0.3 * torch.logsumexp(q / 0.3, dim=1))


def test_a_hopeless_action_costs_no_more_than_the_clip() -> None:
    q = floats(100.0, 0.0)[None]
    found = [munchausen_reward(floats(1.0), q, torch.tensor([a]), 0.9, 0.03, -1.0) for a in (0, 1)]
    torch.testing.assert_close(torch.cat(found), floats(1.0, 1.0 - 0.9))


def test_cold_it_is_the_largest_value() -> None:
    q = floats(1.0, 3.0, 2.0)[None]
    torch.testing.assert_close(munchausen_value(q, q, 1e-3), floats(3.0))


def test_of_quantiles_the_mean_is_that_of_the_means() -> None:
    quantiles = torch.randn(4, 3, 6, dtype=torch.float64)
    q = quantiles.mean(dim=2)
    found = munchausen_value(quantiles, q, 0.5)
    assert found.shape == (4, 6)
    torch.testing.assert_close(found.mean(dim=1), munchausen_value(q, q, 0.5))


def test_neither_carries_a_gradient() -> None:
    q = torch.randn(2, 3, requires_grad=True)
    reward = munchausen_reward(torch.zeros(2), q, torch.zeros(2, dtype=torch.int64))
    assert not reward.requires_grad
    assert not munchausen_value(q, q).requires_grad


def test_taken() -> None:
    values = torch.arange(12.0).view(2, 3, 2)
    torch.testing.assert_close(taken(values, torch.tensor([2, 0])), torch.tensor([[4.0, 5.0], [6.0, 7.0]]))
    torch.testing.assert_close(taken(values[:, :, 0], torch.tensor([2, 0])), torch.tensor([4.0, 6.0]))


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(SpecError, match=r"reward has shape \(3,\); expected \(2\)"):
        munchausen_reward(torch.zeros(3), torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(SpecError, match=r"q has shape \(2, 3\); expected \(2, 4\)"):
        munchausen_value(torch.zeros(2, 4, 5), torch.zeros(2, 3))
    with pytest.raises(SpecError, match="action"):
        taken(torch.zeros(2, 4), torch.zeros(3, dtype=torch.int64))
