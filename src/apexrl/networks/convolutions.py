"""The convolutions of image encoders, from MinAtar's to IMPALA's residual network."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from apexrl.errors import SpecError
from apexrl.image_shapes import SHORTEST_IMAGE_SIDE
from apexrl.networks.layer_norm import image_norms

Architecture = Literal["auto", "minatar", "small", "nature", "shallow", "resnet"]

LEAST_SIDE: dict[Architecture, int] = {
    "nature": 36,
    "small": 16,
    "minatar": SHORTEST_IMAGE_SIDE,
    "resnet": SHORTEST_IMAGE_SIDE,
    "shallow": 20,
}
"""Pixels of the shorter side; ``auto`` is the first whose convolutions the image is large enough for."""
PLAIN_LAYERS: dict[Architecture, tuple[tuple[int, int, int], ...]] = {
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "small": ((32, 3, 1), (64, 3, 2)),
    "minatar": ((16, 3, 1),),
    "shallow": ((16, 8, 4), (32, 4, 2)),
}
"""Filters, their side and their stride, with a ReLU behind each: Mnih et al. 2015, Methods; ours; Young & Tian 2019;
Mnih et al. 2013 and 2016, and the smaller network of IMPALA (Espeholt et al. 2018, figure 3, left)."""
RESIDUAL_CHANNELS = (16, 32, 32)


def chosen(kind: Architecture, shape: tuple[int, ...], side: int) -> Architecture:
    """The convolutions for images whose shorter side has so many pixels, at least ``SHORTEST_IMAGE_SIDE``; never
    ``auto``.

    Raises:
        SpecError: the images, which have that ``shape``, are too small.
    """
    if kind == "auto":
        return next(kind for kind, least in LEAST_SIDE.items() if side >= least)
    if side < LEAST_SIDE[kind]:
        fitting = ", ".join(kind for kind, least in LEAST_SIDE.items() if side >= least)
        raise SpecError(
            f"--encoder {kind} needs images of at least {LEAST_SIDE[kind]} pixels a side, and these have the shape "
            f"{shape}: choose auto, {fitting}"
        )
    return kind


class Convolutions(NamedTuple):
    """What an image goes through, in this order."""

    layers: nn.ModuleList
    norms: nn.ModuleList  # before the ReLU behind each layer; of a residual network before the one behind the last


def convolutions(kind: Architecture, channels: int, layer_norm: bool, width: int = 1) -> Convolutions:
    """Layers for images of so many channels, [B, channels, H, W]. ``kind``: not ``auto``; each layer has ``width``
    times its filters."""
    layers: list[nn.Module]
    normed: tuple[int, ...]
    if kind == "resnet":
        stages = tuple(width * filters for filters in RESIDUAL_CHANNELS)
        layers = [ResidualStage(inputs, filters, layer_norm) for inputs, filters in pairwise((channels, *stages))]
        normed = stages[-1:]
    else:
        normed = tuple(width * filters for filters, _, _ in PLAIN_LAYERS[kind])
        sizes = pairwise((channels, *normed))
        layers = [
            nn.Conv2d(inputs, filters, side, stride)
            for (inputs, filters), (_, side, stride) in zip(sizes, PLAIN_LAYERS[kind], strict=True)
        ]
    return Convolutions(nn.ModuleList(layers), image_norms(normed, layer_norm))


class ResidualStage(nn.Module):
    """A convolution of 3×3, max pooling of 3×3 with stride 2, and two residual blocks of two convolutions each.

    Espeholt et al. 2018 (IMPALA), figure 3, right. A ReLU stands before each convolution of a block, and none at the
    end of a stage.
    """

    def __init__(self, inputs: int, filters: int, layer_norm: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, filters, 3, padding=1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.convolutions = nn.ModuleList(nn.Conv2d(filters, filters, 3, padding=1) for _ in range(4))
        self.norms = image_norms([filters] * 4, layer_norm)  # before the ReLU of each

    def forward(self, image: Tensor) -> Tensor:
        """float32 [B, inputs, H, W]; returns [B, filters, ⌈H/2⌉, ⌈W/2⌉]."""
        image = self.pool(self.first(image))
        for block in (0, 2):
            y = image
            for place in (block, block + 1):
                y = self.convolutions[place](torch.relu(self.norms[place](y)))
            image = image + y
        return image
