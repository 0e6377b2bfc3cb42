"""Losses against numbers worked out by hand or with NumPy, and against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from apexrl.errors import SpecError
from apexrl.losses import n_step_return, td_error, td_gradient, td_loss


def floats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("reward", "discount", "bootstrap", "expected"),
    [
        ((1.0, 2.0, 3.0), (0.9, 0.9, 0.9), 10.0, 12.52),
        ((1.0, 2.0, 3.0), (0.9, 0.0, 0.9), 10.0, 2.8),  # terminated at the second step
        ((1.0, 2.0), (0.9, 0.9), 4.0, 6.04),  # truncated there: the value of the final observation counts
    ],
)
def test_n_step_return(
    reward: tuple[float, ...], discount: tuple[float, ...], bootstrap: float, expected: float
) -> None:
    result = n_step_return(floats(*reward)[None], floats(*discount)[None], floats(bootstrap))
    torch.testing.assert_close(result, floats(expected))


def test_td_error() -> None:
    delta = td_error(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 0]), torch.tensor([2.5, 1.0]))
    torch.testing.assert_close(delta, torch.tensor([0.5, -2.0]))


def test_td_loss_is_half_the_weighted_mean_square() -> None:
    torch.testing.assert_close(td_loss(floats(1.0, -2.0), floats(1.0, 0.5)), floats(0.75)[0])


def test_huber_is_linear_beyond_kappa() -> None:
    # ½·0.5² inside, 1·(3 − ½) outside
    torch.testing.assert_close(td_loss(floats(0.5, -3.0), floats(1.0, 1.0), huber=1.0), floats((0.125 + 2.5) / 2)[0])


@pytest.mark.parametrize("huber", [0.0, 0.7])
def test_gradient_in_closed_form_is_autograds(huber: float) -> None:
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(16, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    action = torch.randint(4, (16,), generator=generator)
    target = torch.randn(16, generator=generator, dtype=torch.float64)
    weights = torch.rand(16, generator=generator, dtype=torch.float64)
    delta = td_error(q, action, target)
    (expected,) = torch.autograd.grad(td_loss(delta, weights, huber), q)
    torch.testing.assert_close(td_gradient(delta.detach(), action, weights, 4, huber), expected)


def test_wrong_shapes_and_dtypes_are_named() -> None:
    with pytest.raises(SpecError, match=r"action is torch\.int32; expected torch\.int64"):
        td_error(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int32), torch.zeros(2))
    with pytest.raises(SpecError, match=r"weights has shape \(2, 1\)"):
        td_loss(torch.zeros(2), torch.zeros(2, 1))
    with pytest.raises(SpecError, match=r"reward is torch\.int64; expected a floating-point dtype"):
        n_step_return(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3), torch.zeros(2))
