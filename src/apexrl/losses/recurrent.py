"""Losses of R2D2: rescaled values, n-step targets inside a sequence, one priority for all of its steps.

Kapturowski et al. 2019, Recurrent Experience Replay in Distributed Reinforcement Learning (ICLR), sections 2.3 and 3.
L is the steps of a sequence, B the batch, n the number of actions; time comes first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.losses.shapes import check
from apexrl.losses.values import huber_loss, lambda_return


def rescale(value: Tensor, eps: float) -> Tensor:
    """h(x) = sgn(x)·(√(|x| + 1) − 1) + ε·x, of any shape. Pohlen et al. 2018, arXiv 1805.11593, section 3.2.

    Args:
        value: float.
        eps: ε; 0 leaves values as they are.
    """
    check("value", value, (None,) * value.ndim)
    if not eps:
        return value
    size = value.abs()
    return value.sign() * (size / ((size + 1.0).sqrt() + 1.0)) + eps * value  # (√(x + 1) − 1) without cancellation


def unscale(value: Tensor, eps: float) -> Tensor:
    """h⁻¹(x) = sgn(x)·(((√(1 + 4ε·(|x| + 1 + ε)) − 1) / 2ε)² − 1), of any shape. Pohlen et al. 2018, proposition A.2.

    Args:
        value: float.
        eps: ε of ``rescale``.
    """
    check("value", value, (None,) * value.ndim)
    if not eps:
        return value
    size = value.abs() + (1.0 + eps)
    root = 2.0 * size / ((1.0 + 4.0 * eps * size).sqrt() + 1.0)  # (√(1 + 4εs) − 1) / 2ε without cancellation
    return value.sign() * (root.square() - 1.0)


def sequence_target(
    reward: Tensor, discount: Tensor, mask: Tensor, bootstrap: Tensor, n_step: int, eps: float
) -> Tensor:
    """y_t = h(Σ_{k<m} γ^k·r_{t+k} + γ^m·h⁻¹(Q⁻(s_{t+m}, a*))), [L, B]. Kapturowski et al. 2019, section 2.3.

    m = ``n_step``, or fewer where the steps of the sequence end first: the last n − 1 steps bootstrap from the last
    value at hand (Espeholt et al. 2020, SEED's R2D2). A discount of 0 ends the sum, whatever the values behind it.

    Args:
        reward: [L, B] float, of each step alone.
        discount: [L, B] float, γ·(1 − terminated) of each step.
        mask: [L, B] bool; the steps come first, and behind them where the sequence is shorter, nothing.
        bootstrap: [L + 1, B] float, the rescaled value of every observation, those before and behind a step.
        n_step: n.
        eps: ε of ``rescale``.
    """
    check("reward", reward, (None, None))
    check("discount", discount, tuple(reward.shape))
    check("mask", mask, tuple(reward.shape), torch.bool)
    check("bootstrap", bootstrap, (reward.shape[0] + 1, reward.shape[1]))
    values = unscale(bootstrap.detach(), eps)
    here, last = values[:-1], values[-1:]
    ahead = mask & (discount > 0.0)
    total = here  # of m rewards and a value; m grows by one with every turn
    for _ in range(n_step):
        later = torch.cat((total[1:], last))
        total = torch.where(mask, reward + torch.where(ahead, discount * later, 0.0), here)
    return rescale(total, eps)


def sequence_lambda_target(
    reward: Tensor, discount: Tensor, mask: Tensor, bootstrap: Tensor, trace: Tensor, eps: float
) -> Tensor:
    """h of the λ-return of h⁻¹(Q⁻(s, a*)), [L, B]: ``sequence_target`` with ``lambda_return`` for the n-step sum.

    The transformed Retrace operator of Badia et al. 2020 (Never Give Up, arXiv 2002.06038, appendix), for a greedy
    policy.

    Args:
        reward, discount, mask, bootstrap, eps: as of ``sequence_target``.
        trace: [L, B] float, as of ``lambda_return``.
    """
    check("bootstrap", bootstrap, (reward.shape[0] + 1, reward.shape[1]))
    return rescale(lambda_return(reward, discount, mask, unscale(bootstrap.detach(), eps), trace), eps)


def sequence_loss(delta: Tensor, weights: Tensor, huber: float = 0.0) -> Tensor:
    """mean_B w·Σ_t L(δ_t), a scalar, with ``huber_loss`` for L.

    Args:
        delta: [L, B] float, 0 where there is no step.
        weights: [B] float, importance weights (Schaul et al. 2016, section 3.4).
        huber: κ in TD-error units, of rescaled values.
    """
    check("delta", delta, (None, None))
    check("weights", weights, (delta.shape[1],))
    return (weights * huber_loss(delta, huber).sum(0)).mean()


def sequence_priority(delta: Tensor, mask: Tensor, eta: float) -> Tensor:
    """η·max_t |δ_t| + (1 − η)·mean_t |δ_t| over the steps of each sequence, [B]. Kapturowski et al. 2019, section 2.3.

    Args:
        delta: [L, B] float.
        mask: [L, B] bool, at least one step in every sequence.
        eta: η.
    """
    check("delta", delta, (None, None))
    check("mask", mask, tuple(delta.shape), torch.bool)
    size = torch.where(mask, delta.abs(), 0.0)
    return eta * size.amax(0) + (1.0 - eta) * size.sum(0) / mask.sum(0).clamp(min=1)
