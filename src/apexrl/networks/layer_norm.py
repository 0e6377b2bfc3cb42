"""Layer normalisation (Ba et al. 2016, arXiv 1607.06450), before a ReLU. Where it is not asked for, nothing is done."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def unit_norm(units: int, layer_norm: bool) -> nn.Module:
    """Of fully connected units, [..., units]."""
    return nn.LayerNorm(units) if layer_norm else nn.Identity()


def stream_norm(streams: int, units: int, layer_norm: bool) -> nn.Module:
    """Of the units of several streams side by side, [..., streams · units], each stream by itself."""
    if streams == 1:
        return unit_norm(units, layer_norm)
    return StreamNorm(streams, units) if layer_norm else nn.Identity()


def image_norms(channels: Sequence[int], layer_norm: bool) -> nn.ModuleList:
    """Of convolutions with so many ``channels`` each: of all that one puts out for an image, [B, C, H, W], with a gain
    and a bias for each channel."""
    return nn.ModuleList(nn.GroupNorm(1, count) if layer_norm else nn.Identity() for count in channels)


class StreamNorm(nn.Module):
    """Layer normalisation of each of several streams, [..., streams · units]."""

    def __init__(self, streams: int, units: int) -> None:
        super().__init__()
        self._shape = (streams, units)
        self.weight = nn.Parameter(torch.ones(streams * units))
        self.bias = nn.Parameter(torch.zeros(streams * units))

    def forward(self, x: Tensor) -> Tensor:
        normed = nn.functional.layer_norm(x.view(*x.shape[:-1], *self._shape), self._shape[1:])
        return torch.addcmul(self.bias, normed.flatten(-2), self.weight)
