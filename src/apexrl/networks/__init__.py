"""Networks: observations -> features -> Q-values, and their gradients."""

from __future__ import annotations

from apexrl.networks.differentiate import ByAutograd, ByHand, Differentiable, differentiable
from apexrl.networks.encoders import encoder_for
from apexrl.networks.flat_parameters import FlatParameters
from apexrl.networks.noisy import NoisyLinear, scaled
from apexrl.networks.q_network import NOTHING, Draw, QNetwork

__all__ = [
    "NOTHING",
    "ByAutograd",
    "ByHand",
    "Differentiable",
    "Draw",
    "FlatParameters",
    "NoisyLinear",
    "QNetwork",
    "differentiable",
    "encoder_for",
    "scaled",
]
