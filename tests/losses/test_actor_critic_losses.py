"""GAE, V-trace and PPO's clip: numbers worked out elsewhere, and plain loops that say the same."""

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
    Advantages,
    clipped_surrogate,
    clipped_value_loss,
    gae,
    gradient_surrogate,
    n_step_return,
    normalized_advantage,
    unexplained,
    value_loss,
    vtrace,
)

Floats = NDArray[np.float64]
EVERY = torch.ones(3, 1, dtype=torch.bool)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def close(actual: Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual, column(*expected), rtol=0, atol=1e-9)


# GAE


def test_gae_of_known_numbers() -> None:
    reward, values = column(1, 0, 2), column(0.5, 0.4, 0.3, 1)
    found = gae(reward, column(0.9, 0.9, 0.9), EVERY, values, 0.8)
    close(found.advantage, 2.11424, 1.742, 2.6)
    close(found.target, 2.61424, 2.142, 2.9)
    close(gae(reward, column(0.9, 0, 0.9), EVERY, values, 0.8).advantage, 0.572, -0.4, 2.6)  # terminated at the second


def test_with_lambda_1_targets_are_the_returns_of_all_steps() -> None:
    rng = np.random.default_rng(0)
    reward, discount, values = rng.normal(size=(7, 4)), rng.choice([0.0, 0.9], (7, 4)), rng.normal(size=(8, 4))
    r, d, v = (torch.from_numpy(array) for array in (reward, discount, values))
    target = gae(r, d, torch.ones(7, 4) > 0, v, 1.0).target
    for t in range(7):
        torch.testing.assert_close(target[t], n_step_return(r[t:].t(), d[t:].t(), v[7]))


# V-trace

REWARD, VALUES, RATIO = column(1, 2, 3), column(1, 2, 3, 4), column(0.5, 2, 1)
DISCOUNT = column(0.9, 0.9, 0.9)


def test_vtrace_of_known_numbers() -> None:
    found = vtrace(REWARD, DISCOUNT, EVERY, VALUES, RATIO)
    close(found.target, 4.573, 7.94, 6.6)
    close(found.advantage, 3.573, 5.94, 3.6)
    ended = vtrace(REWARD, column(0.9, 0, 0.9), EVERY, VALUES, RATIO)
    close(ended.target, 1.9, 2, 6.6)
    close(ended.advantage, 0.9, 0, 3.6)


def test_vtrace_of_rlax() -> None:
    """rlax, ``vtrace_test.py``: two unrolls of four steps, from the logits of both policies."""
    behind = np.array(
        [[[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]], [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]]]
    )
    now = np.array(
        [[[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]], [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]]]
    )
    action = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]])
    reward = torch.tensor([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]]).double()
    discount = torch.tensor([[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]]).double()
    values = torch.tensor([[2.1, 1.1, -3.1, 0.0, 8.4], [3.1, 0.1, -1.1, 7.4, -1.2]]).double()
    log_p, log_mu = (
        torch.log_softmax(torch.from_numpy(logits), dim=2).gather(2, action[..., None]).squeeze(2)
        for logits in (now, behind)
    )
    ratio = (log_p - log_mu).exp()
    found = vtrace(reward.t(), discount.t(), torch.ones(4, 2) > 0, values.t(), ratio.t())
    expected = [[-1.6155, -3.4973, 1.8671, 50.316], [1.4662, 3.6116, -8.3e-5, -13.54]]
    np.testing.assert_allclose((found.target - values.t()[:-1]).t(), expected, rtol=0, atol=6e-5)
    assert float(found.target[2, 1] - values[1, 2]) == pytest.approx(-8.3e-5, rel=1e-2)


def test_on_policy_vtrace_is_the_n_step_return() -> None:
    found = vtrace(REWARD, DISCOUNT, EVERY, VALUES, torch.ones(3, 1).double())
    close(found.target[:1], 8.146)
    returns = gae(REWARD, DISCOUNT, EVERY, VALUES, 1.0)
    torch.testing.assert_close(found.target, returns.target)
    torch.testing.assert_close(found.advantage, returns.advantage)


def by_definition(data: dict[str, Floats], decay: float, rho_clip: float, c_clip: float) -> tuple[Floats, Floats]:
    """v and A of one unroll, from the sums of equation 1, not from a recursion."""
    reward, discount, mask, values, ratio = (data[name] for name in ("reward", "discount", "mask", "values", "ratio"))
    steps = len(reward)
    rho, c = np.minimum(ratio, rho_clip), decay * np.minimum(ratio, c_clip)
    delta = mask * rho * (reward + discount * values[1:] - values[:-1])
    target = np.append(np.zeros(steps), values[-1])
    for s in range(steps):
        target[s] = values[s] + sum(
            math.prod(discount[i] * c[i] for i in range(s, t)) * delta[t] for t in range(s, steps)
        )
    return target[:-1], mask * rho * (reward + discount * target[1:] - values[:-1])


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 6),
    decay=st.sampled_from([1.0, 0.9, 0.0]),
    clips=st.sampled_from([(1.0, 1.0), (2.0, 1.0), (0.5, 0.3)]),
)
def test_vtrace_is_the_sum_that_defines_it(seed: int, steps: int, decay: float, clips: tuple[float, float]) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random(steps) < 0.8
    data = {
        "reward": rng.normal(size=steps) * mask,
        "discount": rng.choice([0.0, 0.9], steps) * mask,
        "mask": mask,
        "values": rng.normal(size=steps + 1),
        "ratio": np.exp(rng.normal(size=steps)),
    }
    target, advantage = by_definition(data, decay, *clips)
    steps_of = {name: torch.from_numpy(array)[:, None] for name, array in data.items()}
    found = vtrace(**steps_of, decay=decay, rho_clip=clips[0], c_clip=clips[1])
    np.testing.assert_allclose(found.target[:, 0], target, atol=1e-9)
    np.testing.assert_allclose(found.advantage[:, 0], advantage, atol=1e-9)


# Across episodes


def aims(rule: str, reward: Tensor, discount: Tensor, mask: Tensor, values: Tensor) -> Advantages:
    if rule == "gae":
        return gae(reward, discount, mask, values, 0.8)
    return vtrace(reward, discount, mask, values, torch.full_like(reward, 0.7))


@pytest.mark.parametrize("rule", ["gae", "vtrace"])
def test_a_truncated_episode_bootstraps_from_its_final_observation_and_nothing_from_the_next_one(rule: str) -> None:
    # a step that is cut short, the final observation, and a step of the next episode
    reward, discount, mask = column(1, 0, 5), column(0.9, 0, 0.9), torch.tensor([[True], [False], [True]])
    values = column(2, 3, 4, 6)
    found = aims(rule, reward, discount, mask, values)
    alone = aims(rule, reward[:1], discount[:1], mask[:1], values[:2])
    torch.testing.assert_close(found.target[:1], alone.target)
    torch.testing.assert_close(found.advantage[:1], alone.advantage)
    assert float(alone.target) != float(aims(rule, reward[:1], 0 * discount[:1], mask[:1], values[:2]).target)
    assert float(found.target[1]) == 3.0  # at a final observation, its own value
    assert float(found.advantage[1]) == 0.0


# How the policy follows


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"), [(1.5, 1.0, -1.2), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8)]
)
def test_the_clipped_surrogate_is_the_pessimistic_one(ratio: float, advantage: float, loss: float) -> None:
    at = column(ratio).requires_grad_()
    found = clipped_surrogate(at, column(advantage), 0.2)
    close(found.detach(), loss)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert at.grad is not None
    flat = (ratio - 1.0) * advantage > 0  # it has gone far enough that way
    close(at.grad, 0.0 if flat else -advantage)


def test_at_the_policy_that_acted_both_surrogates_have_one_gradient() -> None:
    log_prob = torch.log(column(0.2, 0.7)).requires_grad_()
    advantage = column(3.0, -2.0)
    (one,) = torch.autograd.grad(gradient_surrogate(log_prob, advantage).sum(), log_prob)
    ratio = (log_prob - log_prob.detach()).exp()
    (two,) = torch.autograd.grad(clipped_surrogate(ratio, advantage, 0.2).sum(), log_prob)
    close(one, -3.0, 2.0)
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("floor", [0.0, 1e-6, 0.3])
def test_the_surrogate_with_a_floor_is_the_log_of_the_sum(floor: float) -> None:
    log_prob = column(math.log(0.9), math.log(1e-4), -40.0).requires_grad_()
    advantage = column(2.0, -3.0, 1.0)
    loss = gradient_surrogate(log_prob, advantage, floor)
    torch.testing.assert_close(loss, -advantage * torch.log(log_prob.exp() + floor))
    loss.sum().backward()
    chance = log_prob.detach().exp()
    torch.testing.assert_close(log_prob.grad, -advantage * chance / (chance + floor))


def test_no_gradient_flows_through_targets_and_advantages() -> None:
    values, ratio = VALUES.clone().requires_grad_(), RATIO.clone().requires_grad_()
    found = (
        *gae(REWARD, DISCOUNT, EVERY, values, 0.8),
        *vtrace(REWARD, DISCOUNT, EVERY, values, ratio),
    )
    assert not any(tensor.requires_grad for tensor in found)
    assert not gradient_surrogate(column(1.0), values[:1]).requires_grad


def test_normalized_over_the_steps_alone() -> None:
    advantage = torch.tensor([[1.0, 100.0], [3.0, 8.0]]).double()
    mask = torch.tensor([[True, False], [True, True]])
    expected = (np.array([1.0, 3.0, 8.0]) - 4.0) / np.std([1.0, 3.0, 8.0], ddof=1)
    np.testing.assert_allclose(normalized_advantage(advantage, mask)[mask], expected, rtol=1e-7)
    assert float(normalized_advantage(advantage, mask)[0, 1]) == 0.0
    assert not normalized_advantage(advantage, mask & False).any()
    assert not normalized_advantage(advantage, torch.tensor([[True, False], [False, False]])).any()


def test_a_deviation_below_the_smallest_is_not_stretched() -> None:
    advantage, mask = torch.tensor([[0.01], [-0.01], [0.0]]).double(), torch.ones(3, 1, dtype=torch.bool)
    np.testing.assert_allclose(normalized_advantage(advantage, mask, torch.tensor(0.1).double()), advantage / 0.1)
    np.testing.assert_allclose(normalized_advantage(advantage, mask, torch.tensor(0.001).double()), advantage / 0.01)


def test_what_values_do_not_explain() -> None:
    target = torch.tensor([[1.0, 100.0], [3.0, 8.0]]).double()
    mask = torch.tensor([[True, False], [True, True]])
    values = torch.tensor([[2.0, -7.0], [2.0, 7.0]]).double()
    expected = np.var([-1.0, 1.0, 1.0]) / np.var([1.0, 3.0, 8.0])
    assert float(unexplained(values, target, mask)) == pytest.approx(expected)
    assert float(unexplained(target, target, mask)) == 0.0
    assert float(unexplained(-3.0 * target, target, mask)) == 1.0  # worse than nothing
    assert float(unexplained(values, torch.ones_like(target), mask)) == 1.0  # nothing to explain
    assert float(unexplained(values, target, mask & False)) == 1.0


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(SpecError, match=r"values has shape \(3, 1\); expected \(4, 1\)"):
        gae(REWARD, DISCOUNT, EVERY, VALUES[:3], 1.0)
    with pytest.raises(SpecError, match=r"mask is torch\.float64; expected torch\.bool"):
        gae(REWARD, DISCOUNT, EVERY.double(), VALUES, 1.0)
    with pytest.raises(SpecError, match=r"ratio has shape \(2, 1\)"):
        vtrace(REWARD, DISCOUNT, EVERY, VALUES, RATIO[:2])
    with pytest.raises(SpecError, match=r"advantage has shape \(1, 1\)"):
        clipped_surrogate(RATIO, column(1.0), 0.2)


# Values


def test_a_value_is_held_to_where_it_was() -> None:
    """Moved by 0, within the clip, beyond it to the target, and beyond it away from the target; the target is 1."""
    values, before = column(0.0, 0.1, 0.9, -0.9).requires_grad_(), column(0.0, 0.0, 0.0, 0.0)
    loss = clipped_value_loss(values, torch.ones_like(before), before, 0.2)
    close(loss.detach(), 0.5, 0.405, 0.32, 1.805)  # 0.32 = ½(1 − 0.2)²
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    close(values.grad, -1.0, -0.9, 0.0, -1.9)
    close(value_loss(values, torch.ones_like(before)).detach(), 0.5, 0.405, 0.005, 1.805)


def test_clipped_values_are_as_cleanrl_has_them() -> None:
    rng = np.random.default_rng(0)
    new, old, target = (torch.from_numpy(rng.normal(size=(5, 4))) for _ in range(3))
    unclipped = (new - target) ** 2
    clipped = (old + torch.clamp(new - old, -0.3, 0.3) - target) ** 2
    torch.testing.assert_close(clipped_value_loss(new, target, old, 0.3), 0.5 * torch.max(unclipped, clipped))
