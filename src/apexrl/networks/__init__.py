"""Networks: observations -> features -> Q-values, and their gradients."""

from __future__ import annotations

from apexrl.networks.differentiate import ByAutograd, ByHand, Differentiable, differentiable
from apexrl.networks.encoders import encoder_for
from apexrl.networks.flat import FlatParameters
from apexrl.networks.q_network import QNetwork

__all__ = [
    "ByAutograd",
    "ByHand",
    "Differentiable",
    "FlatParameters",
    "QNetwork",
    "differentiable",
    "encoder_for",
]
