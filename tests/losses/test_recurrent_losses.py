"""R2D2's formulas: numbers worked out elsewhere, and a plain loop that says the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from apexrl.errors import SpecError
from apexrl.losses import (
    lambda_return,
    rescale,
    sequence_lambda_target,
    sequence_loss,
    sequence_priority,
    sequence_target,
    td_loss,
    unscale,
)

EPS = 1e-3
Floats = NDArray[np.float64]


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def steps(count: int) -> Tensor:
    return torch.ones(count, 1, dtype=torch.bool)


def test_h_of_known_numbers() -> None:
    h = rescale(tensor([0.0, 1.0, 3.0, -8.0, 100.0]), EPS)
    np.testing.assert_allclose(h, [0.0, 0.4152136, 1.003, -2.008, 9.149876], rtol=0, atol=5e-7)


def test_h_is_undone_exactly() -> None:
    x = tensor([0.0, 1e-9, -1e-6, 0.3, 1.0, -8.0, 100.0, 1e6, -1e9])
    for eps in (1e-3, 1e-2, 0.5):
        torch.testing.assert_close(unscale(rescale(x, eps), eps), x, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(rescale(unscale(x, eps), eps), x, rtol=1e-12, atol=1e-15)


def test_single_precision_loses_nothing_of_note() -> None:
    """The formula as it is printed loses three digits here: √(1 + 4ε…) − 1 is small."""
    x = torch.linspace(-300.0, 300.0, 6001)
    torch.testing.assert_close(unscale(rescale(x, EPS), EPS), x, rtol=2e-6, atol=2e-6)


def test_without_eps_values_stay_as_they_are() -> None:
    x = tensor([-3.0, 0.5])
    assert rescale(x, 0.0) is x
    assert unscale(x, 0.0) is x


def test_a_target_of_five_rewards_and_a_value() -> None:
    """h is applied after the whole sum; Q′ = 2 is a rescaled value."""
    target = sequence_target(
        torch.ones(5, 1).double(), torch.full((5, 1), 0.997).double(), steps(5), tensor([[2.0]] * 6), 5, EPS
    )
    assert float(target[0]) == pytest.approx(2.728159, abs=5e-7)


def test_the_last_steps_bootstrap_from_the_last_value() -> None:
    """Without rescaling, by hand: γ = ½, n = 3, three steps, so the second has two rewards and the third one."""
    reward, discount = tensor([[1.0], [2.0], [4.0]]), torch.full((3, 1), 0.5).double()
    bootstrap = tensor([[100.0], [200.0], [300.0], [8.0]])
    target = sequence_target(reward, discount, steps(3), bootstrap, 3, 0.0)
    assert target.flatten().tolist() == [1 + 1 + 1 + 1, 2 + 2 + 2, 4 + 4]


def test_a_termination_ends_the_sum_and_a_truncation_bootstraps() -> None:
    mask = torch.tensor([[True] * 2] * 2 + [[False] * 2] * 2)
    reward = tensor([[1.0, 1.0], [2.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    discount = tensor([[0.5, 0.5], [0.0, 0.5], [0.0, 0.0], [0.0, 0.0]])  # the first terminates, the second is cut
    bootstrap = tensor([[9.0, 9.0], [9.0, 9.0], [math.nan, 8.0], [math.inf, 7.0], [7.0, 7.0]])
    target = sequence_target(reward, discount, mask, bootstrap, 5, 0.0)
    assert target[:2].T.tolist() == [[1 + 1, 2], [1 + 1 + 2, 2 + 4]]


def test_a_lambda_target_by_hand() -> None:
    """γ = λ = ½ without rescaling; the third step is none, and the second action not greedy."""
    reward, discount = tensor([[1.0], [2.0], [math.nan]]), tensor([[0.5], [0.5], [0.0]])
    mask, bootstrap = torch.tensor([[True], [True], [False]]), tensor([[9.0], [2.0], [8.0], [math.inf]])
    for trace, first in ((0.5, 1 + 0.5 * (2 + 0.5 * (6 - 2))), (0.0, 1 + 0.5 * 2)):
        traces = tensor([[0.5], [trace], [0.5]])
        target = sequence_lambda_target(reward.nan_to_num(), discount, mask, bootstrap, traces, 0.0)
        assert target[:2].flatten().tolist() == [first, 2 + 0.5 * 8]


def test_lambda_targets_are_sums_of_values_that_are_no_longer_rescaled() -> None:
    rng = np.random.default_rng(0)
    reward, value = tensor(rng.normal(size=(6, 3)) * 5), tensor(rng.normal(size=(7, 3)) * 5)
    discount, mask = torch.full_like(reward, 0.9), torch.ones(6, 3) > 0
    whole = sequence_lambda_target(reward, discount, mask, value, torch.ones_like(reward), EPS)
    torch.testing.assert_close(whole, sequence_target(reward, discount, mask, value, 6, EPS))
    trace = torch.full_like(reward, 0.7)
    expected = rescale(lambda_return(reward, discount, mask, unscale(value, EPS), trace), EPS)
    torch.testing.assert_close(sequence_lambda_target(reward, discount, mask, value, trace, EPS), expected)


def by_hand(reward: Floats, discount: Floats, length: int, value: Floats, n: int) -> Floats:
    """One sequence of ``length`` steps, step by step."""
    targets = []
    for t in range(length):
        total, factor = 0.0, 1.0
        for k in range(min(n, length - t)):
            total += factor * reward[t + k]
            factor *= discount[t + k]
        total += factor * float(unscale(tensor(value[min(t + n, length)]), EPS))
        targets.append(float(rescale(tensor(total), EPS)))
    return np.array(targets)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_it_equals_a_plain_loop_whatever_stands_behind_the_steps(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    longest, rows, n = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))
    lengths = rng.integers(1, longest + 1, size=rows)
    mask = np.arange(longest)[:, None] < lengths
    reward, value = rng.normal(size=(longest, rows)) * 3, rng.normal(size=(longest + 1, rows)) * 3
    discount = np.where(rng.random((longest, rows)) < 0.2, 0.0, 0.9)
    target = sequence_target(tensor(reward), tensor(discount), torch.from_numpy(mask), tensor(value), n, EPS)
    for row, length in enumerate(lengths):
        expected = by_hand(reward[:, row], discount[:, row], length, value[:, row], n)
        np.testing.assert_allclose(target[:length, row], expected, rtol=1e-12)

    noise = rng.normal(size=(longest, rows)) * 100
    beyond = np.arange(longest + 1)[:, None] > lengths
    again = sequence_target(
        tensor(np.where(mask, reward, noise)),
        tensor(np.where(mask, discount, noise)),
        torch.from_numpy(mask),
        tensor(np.where(beyond, np.nan, value)),
        n,
        EPS,
    )
    torch.testing.assert_close(again[torch.from_numpy(mask)], target[torch.from_numpy(mask)], rtol=0, atol=0)


def test_a_target_takes_no_gradient() -> None:
    bootstrap = torch.ones(3, 1, requires_grad=True)
    assert not sequence_target(torch.ones(2, 1), torch.ones(2, 1), steps(2), bootstrap, 2, EPS).requires_grad


def test_the_loss_sums_over_time_and_is_a_mean_over_the_batch() -> None:
    delta = tensor([[1.0, 2.0], [3.0, 0.0]])
    assert float(sequence_loss(delta, tensor([1.0, 0.5]))) == pytest.approx(0.5 * (10.0 + 0.5 * 4.0) / 2)


def test_a_huber_loss_is_that_of_single_steps_summed() -> None:
    delta, weights = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 3, torch.rand(4) + 0.1
    for huber in (0.0, 1.0, 2.5):
        by_step = sum(td_loss(step, weights, huber) for step in delta)
        torch.testing.assert_close(sequence_loss(delta, weights, huber), by_step)


def test_the_priority_mixes_greatest_and_mean() -> None:
    assert float(sequence_priority(tensor([[0.1], [-0.2], [0.9]]), steps(3), 0.9)) == pytest.approx(0.85)
    delta, mask = tensor([[0.1], [-0.2], [0.9], [math.nan]]), torch.tensor([[True], [True], [True], [False]])
    assert float(sequence_priority(delta, mask, 0.9)) == pytest.approx(0.85)
    assert float(sequence_priority(delta, mask, 0.0)) == pytest.approx(0.4)


def test_what_does_not_fit_is_refused() -> None:
    ones, mask = torch.ones(3, 2), torch.ones(3, 2, dtype=torch.bool)
    with pytest.raises(SpecError, match="bootstrap has shape"):
        sequence_target(ones, ones, mask, ones, 2, EPS)
    with pytest.raises(SpecError, match=r"mask is torch\.float32"):
        sequence_target(ones, ones, ones, torch.ones(4, 2), 2, EPS)
    with pytest.raises(SpecError, match="weights has shape"):
        sequence_loss(ones, torch.ones(3))
    with pytest.raises(SpecError, match=r"value is torch\.int64"):
        rescale(torch.ones(2, dtype=torch.int64), EPS)
    with pytest.raises(SpecError, match="mask has shape"):
        sequence_priority(ones, mask[:2], 0.9)
