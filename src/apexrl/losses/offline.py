"""Losses of agents that learn from a fixed dataset: CQL, IQL, TD3+BC.

B is the batch, K the number of critics, d the size of an action, in −1 … 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.losses.shapes import check


def conservative_penalty(candidates: Tensor, q: Tensor, weights: Tensor) -> Tensor:
    """mean(w·(log Σ_j exp(x_j) − Q(s, a))), summed over critics: what CQL makes small beside the Bellman error.

    Kumar et al. 2020 (arXiv 2006.04779), equation 4. Of discrete actions x is Q(s, ·). Of a box it is
    Q(s, a_j) − log p(a_j) of actions drawn from p, whose sum of exponentials is an estimate of the integral, but for
    a constant.

    Args:
        candidates: x [K, B, N] float.
        q: Q(s, a) of the dataset's actions, [K, B] float.
        weights: w [B] float.
    """
    check("candidates", candidates, (*q.shape, None))
    check("weights", weights, (q.shape[1],))
    return (weights * (torch.logsumexp(candidates, dim=2) - q)).mean(dim=1).sum()


def expectile_loss(advantage: Tensor, weights: Tensor, expectile: float) -> Tensor:
    """mean(w·|τ − 1(u < 0)|·u²), with u = Q⁻(s, a) − V(s) = ``advantage``: V becomes the τ-expectile of Q over actions.

    Kostrikov et al. 2021 (IQL, arXiv 2110.06169), equation 5.

    Args:
        advantage: u [B] float.
        weights: w [B] float.
        expectile: τ, between 0 and 1; ½ is the mean.
    """
    check("weights", weights, tuple(advantage.shape))
    share = torch.where(advantage < 0, 1.0 - expectile, expectile)
    return (weights * share * advantage.square()).mean()


def advantage_weighted_loss(log_prob: Tensor, advantage: Tensor, scale: float, most: float) -> Tensor:
    """−mean(min(exp(β·u), most)·log π(a|s)): the dataset's better actions are imitated more.

    Kostrikov et al. 2021 (IQL), equation 7; the bound of 100 is their code's.

    Args:
        log_prob: log π(a|s) [B] float.
        advantage: u [B] float, without gradient.
        scale: β.
        most: the greatest weight.
    """
    check("advantage", advantage, tuple(log_prob.shape))
    weight = torch.exp(scale * advantage.detach()).clamp(max=most)
    return -(weight * log_prob).mean()


def cloned_policy_loss(q: Tensor, action: Tensor, recorded: Tensor, value_weight: float) -> Tensor:
    """−λ·mean Q(s, μ(s)) + mean (μ(s) − a)², λ = α / mean|Q(s, μ(s))|, which is constant.

    Fujimoto & Gu 2021 (TD3+BC, arXiv 2106.06860), equations 3 and 4.

    Args:
        q: Q(s, μ(s)) [B] float.
        action: μ(s) [B, d] float.
        recorded: a [B, d] float, the dataset's.
        value_weight: α.
    """
    check("recorded", recorded, tuple(action.shape))
    scale = value_weight / q.detach().abs().mean().clamp(min=1e-8)
    return -scale * q.mean() + (action - recorded).square().mean()
