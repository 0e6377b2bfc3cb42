"""The squashed Gaussian: a = tanh(u), u ~ N(μ, σ²), independent in every action (Haarnoja et al. 2018, appendix C)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # the authors', SB3's and sbx's
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)


def gaussian(output: Tensor) -> tuple[Tensor, Tensor]:
    """A policy network's outputs, [B, 2d], as μ and log σ, each [B, d]; log σ is held between −20 and 2."""
    mean, log_std = output.chunk(2, dim=1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Unit actions [B, d], differentiable in μ and log σ, and their log-density [B].

    Args:
        mean, log_std: [B, d] float.
        noise: [B, d] float, standard normal: u = μ + σ·noise.
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    # log N(u) needs only the noise: (u − μ)/σ is what it is, whatever the parameters are.
    log_prob = -(0.5 * noise.square() + log_std + _HALF_LOG_2PI + tanh_correction(u)).sum(dim=1)
    return torch.tanh(u), log_prob


def tanh_correction(u: Tensor) -> Tensor:
    """log(1 − tanh²u) = 2·(log 2 − u − softplus(−2u)), exact for large |u| too, where 1 − tanh²u is 0 in floats."""
    return 2.0 * (_LOG_2 - u - torch.nn.functional.softplus(-2.0 * u))
