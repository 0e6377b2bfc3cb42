"""Losses of value-based agents: pure functions on tensors that check shapes and dtypes first.

``discount`` is what the value of the later state is multiplied by: γ^m after m rewards, 0 after a termination,
and γ^m still after a truncation. B is the batch, n the number of actions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from apexrl.losses.actor_critic import sum_back
from apexrl.losses.shapes import check


def n_step_return(reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
    """R = r_0 + d_0·(r_1 + d_1·(… + d_{n−1}·V)), [B], with d_k = γ·(1 − terminated_k). Sutton & Barto 2018, eq. 7.1.

    The replay computes the same natively; this is its reference.

    Args:
        reward: [B, n] float.
        discount: [B, n] float, of each step.
        bootstrap: [B] float, value of the state after the last reward.
    """
    check("reward", reward, (None, None))
    check("discount", discount, tuple(reward.shape))
    check("bootstrap", bootstrap, (reward.shape[0],))
    total = bootstrap
    for k in reversed(range(reward.shape[1])):
        total = reward[:, k] + discount[:, k] * total
    return total


def lambda_return(reward: Tensor, discount: Tensor, mask: Tensor, values: Tensor, trace: Tensor) -> Tensor:
    """G_t = r_t + d_t·(V_{t+1} + c_{t+1}·(G_{t+1} − V_{t+1})), [T, B], time first, without gradient; V = max_a Q(s, a).

    With c = λ it is Peng's Q(λ) (Peng & Williams 1996; PQN: Gallici et al. 2024, arXiv 2407.04811, section 4). With
    c = λ where the action is greedy, else 0, it is Watkins's, and Retrace of the greedy policy (Munos et al. 2016,
    arXiv 1606.02647: c = λ·min(1, π/μ), and Q(s, a) = V where it is not 0).

    Args:
        reward: [T, B] float, of each step alone.
        discount: [T, B] float, γ·(1 − terminated) of each step; behind a 0 nothing counts, finite or not.
        mask: [T, B] bool, false where no step was taken: there G is V.
        values: [T + 1, B] float, V of every observation and of the one behind the last step, where G is V.
        trace: [T, B] float, c of every step; that of the first is not read.
    """
    check("reward", reward, (None, None))
    check("discount", discount, tuple(reward.shape))
    check("mask", mask, tuple(reward.shape), torch.bool)
    check("values", values, (reward.shape[0] + 1, reward.shape[1]))
    check("trace", trace, tuple(reward.shape))
    values = values.detach()
    ahead = torch.where(discount > 0.0, discount * values[1:], 0.0)
    delta = torch.where(mask, reward + ahead - values[:-1], 0.0)  # G − V is the sum of these
    later = torch.cat((trace[1:], torch.zeros_like(trace[:1])))
    return values[:-1] + sum_back(delta, torch.where(mask, discount * later, 0.0))


def taken(values: Tensor, action: Tensor) -> Tensor:
    """The outputs for one action of every row: [B] of values [B, n], [B, N] of distributions [B, n, N].

    Args:
        values: float.
        action: [B] int64.
    """
    check("values", values, (None, None) if values.ndim == 2 else (None, None, None))
    check("action", action, (values.shape[0],), torch.int64)
    index = action.unsqueeze(1)
    if values.ndim == 3:
        index = index.unsqueeze(2).expand(-1, 1, values.shape[2])
    return values.gather(1, index).squeeze(1)


def munchausen_reward(
    reward: Tensor, q: Tensor, action: Tensor, alpha: float = 0.9, temperature: float = 0.03, clip: float = -1.0
) -> Tensor:
    """r + α·clip(τ·log π(a|s), l0, 0), [B], with π = softmax(Q⁻(s, ·)/τ). Vieillard et al. 2020, equation 2.

    Args:
        reward: [B] float, of one step.
        q: [B, n] float, the target network on the state.
        action: [B] int64.
        alpha: α.
        temperature: τ > 0.
        clip: l0 < 0.
    """
    check("q", q, (None, None))
    check("reward", reward, (q.shape[0],))
    log_policy = temperature * torch.log_softmax(q.detach() / temperature, dim=1)
    return reward + alpha * taken(log_policy, action).clamp(clip, 0.0)


def munchausen_value(values: Tensor, q: Tensor, temperature: float = 0.03) -> Tensor:
    """Σ_a π(a|s')·(Z(s', a) − τ·log π(a|s')) with π = softmax(Q⁻(s', ·)/τ), without gradient.

    Vieillard et al. 2020, equation 2; with quantiles for Z, their M-IQN (appendix B).

    Args:
        values: Z, [B, n] or [B, n, N] float.
        q: [B, n] float, its means.
        temperature: τ > 0.

    Returns:
        [B] or [B, N].
    """
    check("values", values, (None, None) if values.ndim == 2 else (None, None, None))
    check("q", q, tuple(values.shape[:2]))
    log_policy = torch.log_softmax(q.detach() / temperature, dim=1)
    policy = probabilities(log_policy)
    entropy = -temperature * (policy * log_policy).sum(dim=1)
    if values.ndim == 2:
        return (policy * values.detach()).sum(dim=1) + entropy
    return torch.einsum("bn,bnk->bk", policy, values.detach()) + entropy[:, None]


def probabilities(log_probs: Tensor) -> Tensor:
    """π of log π, to the base of 2: MKL's exp takes eight times as long where it underflows, as of masked actions."""
    return torch.exp2(log_probs * math.log2(math.e))


def td_error(q: Tensor, action: Tensor, target: Tensor) -> Tensor:
    """δ = y − Q(s, a), [B]; |δ| is the new priority (Schaul et al. 2016, section 3.3).

    Args:
        q: [B, n] float.
        action: [B] int64.
        target: [B] float, a constant.
    """
    check("q", q, (None, None))
    check("action", action, (q.shape[0],), torch.int64)
    check("target", target, (q.shape[0],))
    return target.detach() - q.gather(1, action.unsqueeze(1)).squeeze(1)


def huber_loss(delta: Tensor, huber: float = 0.0) -> Tensor:
    """½δ², elementwise; with ``huber`` = κ > 0, κ·(|δ| − ½κ) where |δ| > κ (Mnih et al. 2015: κ = 1, "error clipping").

    Args:
        delta: float, of any shape.
        huber: κ in TD-error units.
    """
    if not huber:
        return 0.5 * delta.square()
    size = delta.abs()
    clipped = size.clamp(max=huber)
    return clipped * (size - 0.5 * clipped)


def td_loss(delta: Tensor, weights: Tensor, huber: float = 0.0) -> Tensor:
    """mean_B w·L(δ), a scalar, with ``huber_loss`` for L. Horgan et al. 2018, equation 1; w are the importance weights
    of Schaul et al. 2016, section 3.4, on the loss.

    Args:
        delta: [B] float.
        weights: [B] float.
        huber: κ in TD-error units.
    """
    check("delta", delta, (None,))
    check("weights", weights, tuple(delta.shape))
    return (weights * huber_loss(delta, huber)).mean()


def td_gradient(delta: Tensor, action: Tensor, weights: Tensor, actions: int, huber: float = 0.0) -> Tensor:
    """∂ ``td_loss`` / ∂Q in closed form, [B, n]: −w·clip(δ, ±κ)/B at the action taken, else 0.

    The accelerator of ``td_loss``: autograd of the loss takes a tenth of a small network's update.

    Args:
        delta: [B] float.
        action: [B] int64.
        weights: [B] float.
        actions: n.
        huber: κ in TD-error units; 0: no clipping.
    """
    check("delta", delta, (None,))
    check("action", action, tuple(delta.shape), torch.int64)
    check("weights", weights, tuple(delta.shape))
    slope = delta.clamp(-huber, huber) if huber else delta
    taken = (slope * weights).mul_(-1.0 / delta.shape[0])
    return delta.new_zeros((delta.shape[0], actions)).scatter_(1, action.unsqueeze(1), taken.unsqueeze(1))
