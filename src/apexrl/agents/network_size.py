"""A lower bound on the memory of a network's weights, known before it is made."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

from apexrl.config import AgentConfig
from apexrl.spec import EnvSpec

_IMAGE: Final = 1 << 16
"""Larger observations are images, which pass through convolutions first."""


def least_nbytes(config: AgentConfig, spec: EnvSpec) -> int:
    """Bytes that the weights of a shipped agent's network take at least."""
    fields = {name: field for name, field in spec.without_mask().observation.items() if not spec.varies(name)}
    inputs = spec.stack * sum(math.prod(field.shape) for field in fields.values())
    inputs += sum(count for name, count in spec.categories.items() if name in fields)
    convolves = not config.network and any(spec.is_image(name) for name in fields)
    width = config.encoder_width if convolves else 1
    numbers = max(
        inputs // 64 * width * config.image_units,  # features after convolutions, at least
        9 * (32 * width) ** 2 if convolves and config.encoder == "resnet" else 0,
        sum(a * b for a, b in pairwise([inputs, *config.hidden])) if inputs < _IMAGE else 0,
        sum(a * b for a, b in pairwise(config.hidden)),
        sum(a * b for a, b in pairwise(config.critic_hidden)),
        max(config.recurrent_units, config.atoms, config.quantiles, config.cosines) ** 2,
    )
    return 4 * numbers
