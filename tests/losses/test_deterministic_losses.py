"""Against numbers worked out by hand, and against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from apexrl.errors import SpecError
from apexrl.losses.deterministic import ascent_loss, bidirectional_loss, critic_target, smaller_projection, smoothed


def floats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_target_takes_the_smaller_critic_of_each_row() -> None:
    next_q = torch.tensor([[2.0, -1.0, 9.0], [1.0, 3.0, 9.0]])
    target = critic_target(torch.tensor([1.0, 1.0, 4.0]), torch.tensor([0.5, 0.9, 0.0]), next_q)
    torch.testing.assert_close(target, torch.tensor([1.5, 0.1, 4.0]))  # the last row terminated


def test_one_critic_is_taken_as_it_is_and_gets_no_gradient() -> None:
    next_q = torch.tensor([[2.0, -1.0]], requires_grad=True)
    target = critic_target(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.9]), next_q)
    torch.testing.assert_close(target, torch.tensor([2.0, 0.1]))
    assert not target.requires_grad


def test_the_projection_is_of_the_critic_whose_projected_mean_is_the_smaller() -> None:
    support = floats(-1.0, 0.0, 1.0)
    probabilities = torch.stack([torch.stack([floats(0.0, 0.0, 1.0), floats(0.4, 0.6, 0.0)])] * 2)
    probabilities[1, 0], probabilities[1, 1] = floats(0.0, 1.0, 0.0), floats(0.5, 0.0, 0.5)
    found = smaller_projection(floats(0.5, 0.25), floats(0.5, 0.0), probabilities, support)
    # row 1: 0.5 of the second critic before 1 of the first; behind a termination both are the reward
    torch.testing.assert_close(found, torch.stack([floats(0.0, 0.5, 0.5), floats(0.0, 0.75, 0.25)]))
    with pytest.raises(SpecError, match="probabilities"):
        smaller_projection(floats(0.5), floats(0.5), probabilities[:, :1], floats(0.0, 1.0))


def test_smoothing_clips_the_noise_then_the_action() -> None:
    action = torch.tensor([[0.0, 0.8, -0.9, 0.1]])
    noise = torch.tensor([[0.7, 0.4, -0.2, -0.3]])
    torch.testing.assert_close(smoothed(action, noise, 0.5), torch.tensor([[0.5, 1.0, -1.0, -0.2]]))


def test_bi_res_is_the_authors() -> None:
    """Q = 1, Q⁻ = 1.1, Q' = 2, Q⁻' = 1.8, r = 0.5, γ = 0.9: δ1 = 1.12, δ2 = 1.2; tf2rl's loss of them is 1.3192."""
    q, next_q = floats(1.0).requires_grad_(), floats(2.0).requires_grad_()
    forward = 0.5 + 0.9 * 1.8 - q
    backward = 0.5 + 0.9 * next_q - 1.1
    torch.testing.assert_close(forward.detach(), floats(1.12))
    torch.testing.assert_close(backward.detach(), floats(1.2))
    loss = bidirectional_loss(forward, backward, floats(1.0), 0.05)
    torch.testing.assert_close(loss.detach(), floats(0.6632)[0])
    loss.backward()
    torch.testing.assert_close(q.grad, floats(-1.12))
    torch.testing.assert_close(next_q.grad, floats(0.054))
    tf2rl = 2.0 * bidirectional_loss(forward, backward, floats(1.0), 0.05 * 0.9)  # its η of 0.05, and no halves
    torch.testing.assert_close(tf2rl.detach(), floats(1.3192)[0])


def test_bi_res_weighs_both_errors_and_without_eta_is_ddpg() -> None:
    forward, backward, weights = floats(1.0, -2.0), floats(3.0, 1.0), floats(1.0, 0.5)
    torch.testing.assert_close(bidirectional_loss(forward, backward, weights, 0.0), floats(0.75)[0])
    torch.testing.assert_close(bidirectional_loss(forward, backward, weights, 0.1), floats(0.75 + 0.1 * 2.375)[0])


def test_the_policy_climbs_a_clipped_slope() -> None:
    action = torch.zeros(2, 2, requires_grad=True)
    ascent_loss(action, torch.tensor([[0.5, 7.0], [-3.0, -0.25]]), 1.0).backward()
    torch.testing.assert_close(action.grad, torch.tensor([[-0.25, -0.5], [0.5, 0.125]]))


def test_an_unclipped_slope_is_the_deterministic_policy_gradient() -> None:
    parameter = torch.tensor(0.3, requires_grad=True)
    state = torch.tensor([[1.0], [-2.0]])
    (-((parameter * state - 0.7) ** 2).mul(-1.0).mean()).backward()
    expected = parameter.grad
    parameter.grad = None
    action = parameter * state
    slope = -2.0 * (action.detach() - 0.7)
    ascent_loss(action, slope, 100.0).backward()
    torch.testing.assert_close(parameter.grad, expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda: critic_target(torch.zeros(2), torch.zeros(2), torch.zeros(2)),
        lambda: critic_target(torch.zeros(3), torch.zeros(2), torch.zeros(1, 2)),
        lambda: smoothed(torch.zeros(2, 3), torch.zeros(2, 1), 0.5),
        lambda: bidirectional_loss(torch.zeros(2), torch.zeros(3), torch.zeros(2), 0.1),
        lambda: ascent_loss(torch.zeros(2, 3), torch.zeros(2), 1.0),
    ],
)
def test_other_shapes_are_refused(call: object) -> None:
    with pytest.raises(SpecError, match="expected"):
        call()  # type: ignore[operator]
