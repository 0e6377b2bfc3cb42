"""Losses of policy-gradient agents: targets and advantages of unrolls, surrogates and value losses.

T steps of B unrolls, time first. ``discount`` is γ·(1 − terminated) of each step. ``mask`` is false at final
observations, which are no steps: nothing flows across them, and a truncated episode bootstraps from their value.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from apexrl.losses.shapes import check


class Advantages(NamedTuple):
    """Targets of the values, and how much better than expected each action was; both without gradient."""

    target: Tensor  # [T, B]
    advantage: Tensor  # [T, B], 0 where there is no step


def gae(reward: Tensor, discount: Tensor, mask: Tensor, values: Tensor, decay: float) -> Advantages:
    """A_t = δ_t + γλ·A_{t+1} with δ_t = r_t + γ·V_{t+1} − V_t, and the target A_t + V_t.

    Schulman et al. 2016, Generalized Advantage Estimation, arXiv 1506.02438, equation 16. λ = 1 gives the T-step
    returns of A3C (Mnih et al. 2016, algorithm S3).

    Args:
        reward: [T, B] float, of each step alone.
        discount: [T, B] float.
        mask: [T, B] bool.
        values: [T + 1, B] float, of every observation and of the one behind the last step.
        decay: λ.
    """
    _check(reward, discount, mask, values)
    values = values.detach()
    delta = torch.where(mask, reward + discount * values[1:] - values[:-1], 0.0)
    advantage = sum_back(delta, discount * decay)
    return Advantages(advantage + values[:-1], advantage)


def vtrace(
    reward: Tensor,
    discount: Tensor,
    mask: Tensor,
    values: Tensor,
    ratio: Tensor,
    decay: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> Advantages:
    """v_t = V_t + Σ_k γ^k·(Π c)·δ_{t+k} with δ = ρ·(r + γ·V' − V), and the advantage ρ_t·(r_t + γ·v_{t+1} − V_t).

    Espeholt et al. 2018, IMPALA, arXiv 1802.01561, equations 1 and 4; ρ = min(ρ̄, π/μ), c = λ·min(c̄, π/μ).

    Args:
        reward: [T, B] float, of each step alone.
        discount: [T, B] float.
        mask: [T, B] bool.
        values: [T + 1, B] float, of the policy that learns, bootstrap included.
        ratio: [T, B] float, π(a|s) / μ(a|s) of the policy that learns and the one that acted.
        decay: λ.
        rho_clip: ρ̄; the paper's is 1.
        c_clip: c̄, at most ρ̄; the paper's is 1.
    """
    _check(reward, discount, mask, values)
    check("ratio", ratio, tuple(reward.shape))
    values, ratio = values.detach(), ratio.detach()
    rho, c = ratio.clamp(max=rho_clip), decay * ratio.clamp(max=c_clip)
    delta = torch.where(mask, rho * (reward + discount * values[1:] - values[:-1]), 0.0)
    target = values[:-1] + sum_back(delta, discount * c)
    later = torch.cat((target[1:], values[-1:]))
    advantage = torch.where(mask, rho * (reward + discount * later - values[:-1]), 0.0)
    return Advantages(target, advantage)


def gradient_surrogate(log_prob: Tensor, advantage: Tensor, floor: float = 0.0) -> Tensor:
    """−A·log(π(a|s) + ε) of every step, [T, B]: with ε = 0 its gradient is the policy gradient (Mnih et al. 2016,
    section 4); with more, that of actions which have become all but impossible vanishes (Babaeizadeh et al. 2017).

    Args:
        log_prob: [T, B] float; the gradient flows through it.
        advantage: [T, B] float.
        floor: ε.
    """
    check("log_prob", log_prob, (None, None))
    check("advantage", advantage, tuple(log_prob.shape))
    if floor:
        log_prob = torch.logaddexp(log_prob, torch.full_like(log_prob, math.log(floor)))
    return -advantage.detach() * log_prob


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """−min(r·A, clip(r, 1 − ε, 1 + ε)·A) of every step, [T, B].

    Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv 1707.06347, equation 7.

    Args:
        ratio: r = π(a|s) / μ(a|s), [T, B] float; the gradient flows through it.
        advantage: [T, B] float.
        clip: ε.
    """
    check("ratio", ratio, (None, None))
    check("advantage", advantage, tuple(ratio.shape))
    advantage = advantage.detach()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def value_loss(values: Tensor, target: Tensor) -> Tensor:
    """½(V − target)² of every step, [T, B].

    Args:
        values: [T, B] float; the gradient flows through it.
        target: [T, B] float.
    """
    check("values", values, (None, None))
    check("target", target, tuple(values.shape))
    return 0.5 * (values - target.detach()).square()


def clipped_value_loss(values: Tensor, target: Tensor, before: Tensor, clip: float) -> Tensor:
    """½·max((V − target)², (V₀ + clip(V − V₀, ±c) − target)²) of every step, [T, B]: a value that has gone further than
    c towards its target gets no gradient.

    It is in OpenAI's code of PPO and not in the paper; Engstrom et al. 2020, arXiv 2005.12729, section 3, have it.

    Args:
        values: [T, B] float; the gradient flows through it.
        target: [T, B] float.
        before: V₀, [T, B] float, the values from which the targets were made.
        clip: c, in units of return.
    """
    check("before", before, tuple(values.shape))
    before = before.detach()
    held = before + (values - before).clamp(-clip, clip)
    return torch.maximum(value_loss(values, target), value_loss(held, target))


def normalized_advantage(advantage: Tensor, mask: Tensor, smallest: Tensor | None = None) -> Tensor:
    """(A − mean) / std over the steps that ``mask`` [T, B] has, 0 elsewhere and for a step alone.

    Engstrom et al. 2020, Implementation Matters in Deep Policy Gradients, arXiv 2005.12729; with CleanRL's ε of 1e-8.

    Args:
        smallest: a scalar; a smaller deviation is not stretched to 1.
    """
    check("advantage", advantage, (None, None))
    check("mask", mask, tuple(advantage.shape), torch.bool)
    steps = mask.sum()
    mean = torch.where(mask, advantage, 0.0).sum() / steps.clamp(min=1)
    apart = torch.where(mask, advantage - mean, 0.0)
    deviation = (apart.square().sum() / (steps - 1).clamp(min=1)).sqrt()
    return apart / (deviation + 1e-8 if smallest is None else deviation.clamp(min=smallest.clamp(min=1e-8)))


def unexplained(values: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """The share of the targets' variance that the values do not explain, a scalar in 0 … 1.

    Var(target − V) / Var(target) over the steps that ``mask`` [T, B] has; 1 of targets that are all equal.
    """
    variance = _variance(target, mask)
    return torch.where(variance > 0, _variance(target - values, mask) / variance, 1.0).clamp(max=1.0)


def _variance(values: Tensor, mask: Tensor) -> Tensor:
    steps = mask.sum().clamp(min=1)
    mean = torch.where(mask, values, 0.0).sum() / steps
    return torch.where(mask, values - mean, 0.0).square().sum() / steps


def _check(reward: Tensor, discount: Tensor, mask: Tensor, values: Tensor) -> None:
    check("reward", reward, (None, None))
    check("discount", discount, tuple(reward.shape))
    check("mask", mask, tuple(reward.shape), torch.bool)
    check("values", values, (reward.shape[0] + 1, reward.shape[1]))


def sum_back(delta: Tensor, factor: Tensor) -> Tensor:
    """S_t = delta_t + factor_t·S_{t+1}, S_T = 0."""
    total = torch.empty_like(delta)
    after = torch.zeros_like(delta[0])
    for step in reversed(range(len(delta))):
        after = torch.addcmul(delta[step], factor[step], after, out=total[step])
    return total
