"""Losses of agents with a deterministic policy (Lillicrap et al. 2016, Fujimoto et al. 2018, Zhang et al. 2019).

B is the batch, K the number of critics, d the size of an action. ``discount`` is what the value of the later state is
multiplied by: γ^m after m rewards, 0 after a termination, and γ^m still after a truncation; over m > 1 steps it stands
wherever the papers have γ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.losses.distributional import categorical_projection
from apexrl.losses.shapes import check
from apexrl.losses.values import td_loss


def critic_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """y = R + d·min_k Q_k(s', a'), [B], without gradient: DDPG's target with one critic, TD3's with two.

    Args:
        reward: [B] float, the n-step return without its bootstrap.
        discount: [B] float.
        next_q: [K, B] float, of the later state and what the policy would do there.
    """
    check("next_q", next_q, (None, None))
    for name, tensor in (("reward", reward), ("discount", discount)):
        check(name, tensor, (next_q.shape[1],))
    value = next_q.detach()
    return torch.addcmul(reward, discount, value.amin(dim=0) if len(value) > 1 else value[0])


def smaller_projection(reward: Tensor, discount: Tensor, probabilities: Tensor, support: Tensor) -> Tensor:
    """Of each row that one of the K projected targets Φ(R + d·Z_k) whose mean is the smallest, [B, N], no gradient.

    Seo et al. 2025 (FastTD3, arXiv 2505.22642): clipped double Q-learning of distributions; and their code.

    Args:
        reward: [B] float, the n-step return without its bootstrap.
        discount: [B] float.
        probabilities: [K, B, N] float, the target critics'.
        support: z [N] float, evenly spaced and rising.
    """
    check("probabilities", probabilities, (None, None, support.shape[0]))
    projected = torch.stack([categorical_projection(reward, discount, one, support) for one in probabilities])
    least = (projected @ support).argmin(dim=0)
    return projected[least, torch.arange(len(least), device=least.device)]


def smoothed(action: Tensor, noise: Tensor, clip: float) -> Tensor:
    """a' = clip(μ⁻(s') + clip(ε, ±c), ±1), [B, d]: TD3, equation 14, in half widths of the action's range.

    Args:
        action: [B, d] float, the target policy's, in −1 … 1.
        noise: [B, d] float, ε ~ N(0, σ).
        clip: c, in the same unit.
    """
    check("action", action, (None, None))
    check("noise", noise, tuple(action.shape))
    return (action + noise.clamp(-clip, clip)).clamp_(-1.0, 1.0)


def bidirectional_loss(forward: Tensor, backward: Tensor, weights: Tensor, eta: float, huber: float = 0.0) -> Tensor:
    """½·mean(w·δ1²) + η·½·mean(w·δ2²), a scalar. Bi-Res-DDPG: Zhang et al. 2019, arXiv 1905.01072, and their code.

    δ1 = R + d·Q⁻(s', μ⁻(s')) − Q(s, a) learns through Q(s, a), δ2 = R + d·Q(s', μ(s')) − Q⁻(s, a) through Q(s', ·);
    the other side of each is a constant. η is the authors': 0 is DDPG. tf2rl multiplies the second term by γ as well,
    so that its η of 0.05 is 0.05·γ here.

    Args:
        forward: [B] float, δ1.
        backward: [B] float, δ2.
        weights: [B] float, importance weights.
        huber: κ in TD-error units; 0: no clipping.
    """
    return td_loss(forward, weights, huber) + eta * td_loss(backward, weights, huber)


def ascent_loss(action: Tensor, slope: Tensor, most: float) -> Tensor:
    """A scalar whose gradient leads the policy along ∂Q/∂a, every element of it clipped to ±``most``, mean over B.

    Horgan et al. 2018, appendix D, and Acme's D4PG (``rlax.dpg_loss``).

    Args:
        action: [B, d] float, the policy's; gradients flow through it.
        slope: [B, d] float, ∂Q(s, a)/∂a of each row.
        most: in value units per half width of the action's range.
    """
    check("action", action, (None, None))
    check("slope", slope, tuple(action.shape))
    return -(slope.detach().clamp(-most, most) * action).sum(dim=1).mean()
