"""λ-returns of Q-learning: numbers worked out by hand, and a plain loop that says the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from apexrl.errors import SpecError
from apexrl.losses import lambda_return, n_step_return

EVERY = torch.ones(3, 1, dtype=torch.bool)
HALF = torch.full((3, 1), 0.5, dtype=torch.float64)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def found(
    values: Tensor, trace: Tensor = HALF, discount: Tensor = HALF, mask: Tensor = EVERY, reward: Tensor | None = None
) -> list[float]:
    rewards = column(1, 2, 4) if reward is None else reward
    return lambda_return(rewards, discount, mask, values, trace).flatten().tolist()


def test_pengs_q_of_lambda_by_hand() -> None:
    """γ = λ = ½. G_2 = 4 + ½·8; G_1 = 2 + ½·(4 + ½·(8 − 4)); G_0 = 1 + ½·(2 + ½·(5 − 2))."""
    assert found(column(9, 2, 4, 8)) == [2.75, 5.0, 8.0]


def test_a_return_ends_before_an_action_that_is_not_greedy() -> None:
    """Watkins: the second action is not greedy, so the first step's return is 1 + ½·V_1; that action's own goes on."""
    assert found(column(9, 2, 4, 8), trace=column(0, 0, 0.5)) == [2.0, 5.0, 8.0]
    assert found(column(9, 2, 4, 8), trace=column(0, 0.5, 0.5)) == [2.75, 5.0, 8.0]  # the first action is taken anyway


def test_a_termination_ends_it_whatever_stands_behind() -> None:
    mask = torch.tensor([[True], [True], [False]])
    for behind in (4.0, float("nan"), float("inf")):
        first, second, _ = found(column(9, 6, behind, 8), discount=column(0.5, 0.0, 0.0), mask=mask)
        assert (first, second) == (1 + 0.5 * (6 + 0.5 * (2 - 6)), 2.0)


def test_a_truncation_bootstraps_from_its_final_observation() -> None:
    """The second row is a final observation: no step, and nothing of the next episode comes back across it."""
    mask, discount = torch.tensor([[True], [False], [True]]), column(0.5, 0.0, 0.5)
    assert found(column(9, 6, 4, 8), mask=mask, discount=discount) == [1 + 0.5 * 6, 6.0, 8.0]


def test_lambda_1_is_the_return_of_all_steps_and_0_of_one() -> None:
    rng = np.random.default_rng(0)
    r, d, v = (
        torch.from_numpy(array) for array in (rng.normal(size=(7, 4)), rng.random((7, 4)), rng.normal(size=(8, 4)))
    )
    every = torch.ones(7, 4) > 0
    whole = lambda_return(r, d, every, v, torch.ones_like(r))
    for t in range(7):
        torch.testing.assert_close(whole[t], n_step_return(r[t:].t(), d[t:].t(), v[7]))
    torch.testing.assert_close(lambda_return(r, d, every, v, torch.zeros_like(r)), r + d * v[1:])


def test_it_equals_a_plain_loop() -> None:
    rng = np.random.default_rng(1)
    steps, rows = 9, 6
    mask = rng.random((steps, rows)) > 0.2
    discount = np.where(mask, rng.choice([0.0, 0.9], (steps, rows), p=[0.2, 0.8]), 0.0)
    reward, values = rng.normal(size=(steps, rows)), rng.normal(size=(steps + 1, rows))
    trace = 0.7 * (rng.random((steps, rows)) > 0.3)
    expected = np.array(values[:-1])
    for row in range(rows):
        later = values[-1, row]
        for t in reversed(range(steps)):
            if mask[t, row]:
                goes_on = trace[t + 1, row] if t + 1 < steps else 0.0
                mixed = (1 - goes_on) * values[t + 1, row] + goes_on * later
                expected[t, row] = reward[t, row] + discount[t, row] * mixed
            later = expected[t, row]
    given = (torch.from_numpy(one) for one in (reward, discount, mask, values, trace))
    np.testing.assert_allclose(lambda_return(*given), expected, rtol=1e-12)


def test_no_gradient_flows_into_it_and_shapes_are_checked() -> None:
    values = column(9, 2, 4, 8).requires_grad_()
    assert not lambda_return(column(1, 2, 4), HALF, EVERY, values, HALF).requires_grad
    with pytest.raises(SpecError, match="values has shape"):
        lambda_return(column(1, 2, 4), HALF, EVERY, column(1, 2, 4), HALF)
    with pytest.raises(SpecError, match="trace has shape"):
        lambda_return(column(1, 2, 4), HALF, EVERY, values, column(1, 2))
