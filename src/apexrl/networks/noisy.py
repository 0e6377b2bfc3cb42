"""Linear layers whose weights are random: exploration that is learned (Fortunato et al. 2018, arXiv 1706.10295)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def scaled(noise: Tensor) -> Tensor:
    """f(x) = sgn(x)·√|x|, of the same shape. Fortunato et al. 2018, section 3 (b)."""
    return noise.abs().sqrt_().copysign_(noise)


class NoisyLinear(nn.Module):
    """y = (μ_w + σ_w ⊙ ε_out ε_inᵀ)·x + μ_b + σ_b ⊙ ε_out, with factorised noise (equations 9 to 11).

    μ begins as U(±1/√inputs), σ as σ0/√inputs. The noise is set from outside and is no part of the weights.

    Args:
        inputs, outputs: as of ``torch.nn.Linear``.
        sigma: σ0.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))
        self.noise_size = inputs + outputs
        self.noise: Tensor | None = None  # float32, f(ε) of both ends, see ``forward``; None: σ counts for nothing

    def forward(self, x: Tensor) -> Tensor:
        """float32 [B, ..., inputs] -> [B, ..., outputs].

        All rows see the same noise [inputs + outputs], or each its own: [B, inputs + outputs]. Its own is put on the
        row's input and output, which needs no matrix for each row: (σ_w ⊙ ε_out ε_inᵀ)·x = ε_out ⊙ (σ_w·(ε_in ⊙ x)).
        """
        if self.noise is None:
            return nn.functional.linear(x, self.weight, self.bias)
        inputs = self.weight.shape[1]
        if self.noise.ndim == 2:
            noise = self.noise if x.ndim == 2 else self.noise.unsqueeze(1)
            spread = nn.functional.linear(noise[..., :inputs] * x, self.weight_sigma, self.bias_sigma)
            return torch.addcmul(nn.functional.linear(x, self.weight, self.bias), noise[..., inputs:], spread)
        at_input, at_output = self.noise[:inputs], self.noise[inputs:]
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(at_output, at_input))
        return nn.functional.linear(x, weight, torch.addcmul(self.bias, self.bias_sigma, at_output))
