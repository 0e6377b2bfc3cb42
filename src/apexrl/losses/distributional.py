"""Losses of the distribution of the return: C51's categories, the quantiles of QR-DQN and IQN.

B is the batch, N the number of categories or quantiles. All losses are per row, [B]: importance weights and the mean
over the batch come after.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.losses.shapes import check


def categorical_projection(reward: Tensor, discount: Tensor, probabilities: Tensor, support: Tensor) -> Tensor:
    """Φ(R + d·z): the distribution of the target, moved to the fixed support, float [B, N], without gradient.

    Bellemare et al. 2017, algorithm 1. The upper neighbour is taken as lower + 1, not ⌈b⌉: where b is whole, the
    lower one then gets all the mass, not none.

    Args:
        reward: [B] float.
        discount: [B] float.
        probabilities: [B, N] float, of the later state's chosen action.
        support: [N] float, z_i, evenly spaced and rising.
    """
    check("probabilities", probabilities, (None, support.shape[0]))
    check("reward", reward, (probabilities.shape[0],))
    check("discount", discount, tuple(reward.shape))
    check("support", support, (None,))
    last = support.shape[0] - 1
    step = (support[-1] - support[0]) / last
    position = (reward[:, None] + discount[:, None] * support - support[0]) / step
    position = position.clamp(0, last)  # clips to the support; and b = N − 1 + 1e-7 is no place
    lower = position.floor()
    to_upper = (position - lower) * probabilities.detach()
    below = lower.nan_to_num().long()  # NaN is no index either; its mass stays NaN, so that it is found
    above = (below + 1).clamp(max=last)
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(1, below, probabilities.detach() - to_upper)
    return projected.scatter_add_(1, above, to_upper)


def categorical_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """D_KL(target ‖ softmax(logits)), [B], never negative; as a loss it has the gradient of the cross-entropy.

    Hessel et al. 2018, section "The Integrated Agent": the loss, and the priority, of Rainbow.

    Args:
        logits: [B, N] float, of the action taken.
        target: [B, N] float, a constant; rows sum to 1.
    """
    check("logits", logits, (None, None))
    check("target", target, tuple(logits.shape))
    target = target.detach()
    divergence: Tensor = (torch.xlogy(target, target) - target * torch.log_softmax(logits, dim=1)).sum(dim=1)
    return divergence.clamp(min=0.0)


def quantile_loss(quantiles: Tensor, fractions: Tensor, targets: Tensor, huber: float = 1.0) -> Tensor:
    """Σ_i mean_j |τ_i − 1{u_ij < 0}|·L_κ(u_ij)/κ with u_ij = y_j − θ_i, [B]; κ = 0: |τ_i − 1{u_ij < 0}|·|u_ij|.

    Dabney et al. 2018a (QR-DQN, arXiv 1710.10044), equations 9 and 10; with other fractions for every row, Dabney et
    al. 2018b (IQN, arXiv 1806.06923), equation 3.

    Args:
        quantiles: θ [B, N] float, of the action taken.
        fractions: τ, [N] or [B, N] float.
        targets: y [B, M] float, a constant.
        huber: κ, in units of the return.
    """
    _check_quantiles(quantiles, fractions, targets)
    u = targets.detach()[:, None, :] - quantiles[:, :, None]  # [B, N, M]
    size = u.abs()
    if huber:
        small = size.clamp(max=huber)
        size = small * (size - 0.5 * small) / huber
    return ((fractions[..., None] - (u.detach() < 0).to(u.dtype)).abs() * size).mean(dim=2).sum(dim=1)


def sorted_quantile_loss(quantiles: Tensor, fractions: Tensor, targets: Tensor, huber: float = 1.0) -> Tensor:
    """``quantile_loss`` against targets that rise: of each row O(N·log M) instead of O(N·M), and autograd's gradient.

    Where every θ_i and θ_i ± κ lies among the targets tells how many of these are in each piece of the Huber loss; sums
    of y and y² up to there do the rest, as float64, since they cancel.

    Args:
        quantiles, fractions: as of ``quantile_loss``.
        targets: y [B, M] float, a constant; every row rises.
        huber: κ > 0.
    """
    _check_quantiles(quantiles, fractions, targets)
    middle = targets.detach().mean(dim=1, keepdim=True)  # near it, little cancels
    y, theta = (targets.detach() - middle).double(), (quantiles - middle).double()
    first, second = (torch.nn.functional.pad(z.cumsum(dim=1), (1, 0)) for z in (y, y.square()))  # Σy, Σy² before each
    borders = [torch.searchsorted(y, (theta.detach() + shift).contiguous()) for shift in (-huber, 0.0, huber)]
    ends = [torch.zeros_like(borders[0]), *borders, torch.full_like(borders[0], y.shape[1])]

    def piece(place: int) -> tuple[Tensor, Tensor, Tensor]:
        """Number, Σy and Σy² of the targets between two borders."""
        low, high = ends[place], ends[place + 1]
        return high - low, first.gather(1, high) - first.gather(1, low), second.gather(1, high) - second.gather(1, low)

    def far(place: int, sign: int) -> Tensor:
        """Σ κ·(|u| − ½κ), where u has this sign."""
        count, total, _ = piece(place)
        return huber * (sign * (total - count * theta) - 0.5 * huber * count)

    def near(place: int) -> Tensor:
        """Σ ½u²."""
        count, total, square = piece(place)
        return 0.5 * (square - 2.0 * theta * total + count * theta.square())

    losses = (1.0 - fractions) * (far(0, -1) + near(1)) + fractions * (near(2) + far(3, 1))
    return losses.sum(dim=1).to(quantiles.dtype) / (huber * y.shape[1])


def quantile_gradient(quantiles: Tensor, fractions: Tensor, targets: Tensor, huber: float = 1.0) -> Tensor:
    """∂ ``quantile_loss`` / ∂θ in closed form, [B, N]: −mean_j |τ_i − 1{u_ij < 0}|·clip(u_ij, ±κ)/κ.

    As −(τ·Σ_j c_ij + (1 − 2τ)·Σ_j min(c_ij, 0))/M it takes a third of the passes over [B, N, M] that autograd does.

    Args:
        quantiles, fractions, targets: as of ``quantile_loss``.
        huber: κ > 0.
    """
    _check_quantiles(quantiles, fractions, targets)
    u = (targets[:, None, :] - quantiles[:, :, None]).clamp_(-huber, huber)
    total = u.sum(dim=2)
    negative = u.clamp_(max=0.0).sum(dim=2)
    return (fractions * total + (1.0 - 2.0 * fractions) * negative).mul_(-1.0 / (huber * targets.shape[1]))


def _check_quantiles(quantiles: Tensor, fractions: Tensor, targets: Tensor) -> None:
    check("quantiles", quantiles, (None, None))
    rows, n = quantiles.shape
    check("fractions", fractions, (n,) if fractions.ndim == 1 else (rows, n))
    check("targets", targets, (rows, None))
