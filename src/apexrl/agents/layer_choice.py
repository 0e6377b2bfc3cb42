"""Which layers a configuration asks of encoders."""

from __future__ import annotations

from apexrl.config import AgentConfig
from apexrl.networks.encoders import LayerChoice


def layer_choice(config: AgentConfig) -> LayerChoice:
    """``encoder``, ``layer_norm``, ``precision`` and ``encoder_width``, as networks take them."""
    return LayerChoice(config.encoder, config.layer_norm, config.precision, config.encoder_width)
