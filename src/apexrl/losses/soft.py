"""Losses of entropy-regularised agents (Haarnoja et al. 2018, arXiv 1801.01290 and 1812.05905).

B is the batch, K the number of critics, n that of discrete actions. Entropies are in nats. ``temperature`` is α, a
scalar. ``discount`` is what the value of the later state is multiplied by: γ^m after m rewards, 0 after a termination,
and γ^m still after a truncation. Over m > 1 steps only the later state's value holds an entropy: those of the steps
between were other policies' and are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.losses.distributional import categorical_projection
from apexrl.losses.shapes import check
from apexrl.losses.values import huber_loss, probabilities


def soft_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor, temperature: Tensor) -> Tensor:
    """y = R + d·(min_k Q⁻_k(s', a') − α·log π(a'|s')), [B], without gradient; a' is the policy's.

    Haarnoja et al. 2018b, equations 3 and 5, with the smaller of the critics (Fujimoto et al. 2018).

    Args:
        reward: [B] float, the n-step return without its bootstrap.
        discount: [B] float.
        next_q: [K, B] float, the target critics.
        next_log_prob: [B] float.
    """
    check("next_q", next_q, (None, None))
    for name, tensor in (("reward", reward), ("discount", discount), ("next_log_prob", next_log_prob)):
        check(name, tensor, (next_q.shape[1],))
    value = next_q.detach().amin(dim=0) - temperature.detach() * next_log_prob.detach()
    return torch.addcmul(reward, discount, value)


def truncated_target(
    reward: Tensor, discount: Tensor, next_quantiles: Tensor, next_log_prob: Tensor, temperature: Tensor, dropped: int
) -> Tensor:
    """y_i = R + d·(z_(i) − α·log π(a'|s')) of the K·(M − ``dropped``) smallest z, rising, [B, K·(M − dropped)], without
    gradient: all critics' quantiles of the later state are one mixture, of which the greatest are left out.

    Kuznetsov et al. 2020 (TQC, arXiv 2005.04269), equations 11 and 12.

    Args:
        reward: [B] float.
        discount: [B] float.
        next_quantiles: z [K, B, M] float, the target critics'.
        next_log_prob: [B] float.
        dropped: how many quantiles are left out for each critic, fewer than M.
    """
    check("next_quantiles", next_quantiles, (None, None, None))
    critics, rows, quantiles = next_quantiles.shape
    for name, tensor in (("reward", reward), ("discount", discount), ("next_log_prob", next_log_prob)):
        check(name, tensor, (rows,))
    mixture = next_quantiles.detach().transpose(0, 1).flatten(1).sort(dim=1).values
    kept = mixture[:, : critics * (quantiles - dropped)] - (temperature.detach() * next_log_prob.detach())[:, None]
    return torch.addcmul(reward[:, None], discount[:, None], kept)


def soft_categorical_target(
    reward: Tensor,
    discount: Tensor,
    probabilities: Tensor,
    next_log_prob: Tensor,
    temperature: Tensor,
    support: Tensor,
) -> Tensor:
    """Φ(R + d·(Z − α·log π(a'|s'))), [B, N], without gradient, where Z is that critic's distribution of the later state
    whose mean is the smallest of the row's.

    Lee et al. 2025 (SimbaV2, arXiv 2502.15280) and their code, ``categorical_td_loss``.

    Args:
        reward: [B] float.
        discount: [B] float.
        probabilities: [K, B, N] float, the target critics'.
        next_log_prob: [B] float.
        support: z [N] float, evenly spaced and rising.
    """
    check("probabilities", probabilities, (None, None, support.shape[0]))
    for name, tensor in (("reward", reward), ("discount", discount), ("next_log_prob", next_log_prob)):
        check(name, tensor, (probabilities.shape[1],))
    least = (probabilities @ support).argmin(dim=0)
    rows = torch.arange(len(least), device=least.device)
    value = torch.addcmul(reward, discount, temperature.detach() * next_log_prob.detach(), value=-1.0)
    return categorical_projection(value, discount, probabilities[least, rows], support)


def critics_loss(delta: Tensor, weights: Tensor, huber: float = 0.0) -> Tensor:
    """Σ_k mean_i w_i·L(δ_ki), with ``huber_loss`` for L. Haarnoja et al. 2018b, equation 5.

    Args:
        delta: [K, B] float, TD errors; gradients flow through it.
        weights: [B] float, importance weights.
        huber: κ in TD-error units; 0: no clipping.
    """
    check("delta", delta, (None, None))
    check("weights", weights, (delta.shape[1],))
    return (weights * huber_loss(delta, huber)).mean(dim=1).sum()


def policy_loss(q: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """mean(α·log π(a|s) − Q(s, a)), of actions that the policy chose. Haarnoja et al. 2018b, equation 9.

    Args:
        q: [B] float, of two critics the smaller, or the mean of several; gradients flow through it into the actions.
        log_prob: [B] float, likewise.
    """
    check("q", q, (None,))
    check("log_prob", log_prob, tuple(q.shape))
    return (temperature.detach() * log_prob - q).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """−log α·mean(log π + H̄), a scalar: α falls while the policy's entropy is more than H̄.

    Haarnoja et al. 2018b, equation 18, with log α in the place of α as in the authors' code and SB3.

    Args:
        log_temperature: log α, a scalar; the gradient flows through it.
        log_prob: [B] float; [B] expectations where the actions are discrete.
        target_entropy: H̄, in nats.
    """
    check("log_prob", log_prob, (None,))
    return -log_temperature * (log_prob.detach().mean() + target_entropy)


def soft_value(q: Tensor, log_probs: Tensor, temperature: Tensor) -> Tensor:
    """V(s) = Σ_a π(a|s)·(min_k Q_k(s, a) − α·log π(a|s)), [B]. Christodoulou 2019 (arXiv 1910.07207), equation 10.

    −mean(V) is also the policy's loss (its equation 12), where no gradient may flow into ``q``.

    Args:
        q: [K, B, n] float.
        log_probs: [B, n] float.
    """
    check("q", q, (None, None, None))
    check("log_probs", log_probs, tuple(q.shape[1:]))
    return (probabilities(log_probs) * (q.amin(dim=0) - temperature.detach() * log_probs)).sum(dim=1)
