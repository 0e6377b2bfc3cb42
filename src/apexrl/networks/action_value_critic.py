"""Critics of discrete actions: observations -> a value of every action, K times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from apexrl.networks.actor_critic import Trunk
from apexrl.networks.ensemble import Ensemble
from apexrl.spec import EnvSpec


class ActionValues(nn.Module):
    """K critics that share nothing but what encodes images.

    Args:
        spec: the environment.
        hidden: units of every critic's layers.
        count: K.
        actions: n.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        count: int,
        actions: int,
        image_units: int = 512,
        network: str = "",
    ) -> None:
        super().__init__()
        self.trunk = Trunk(spec, (), image_units, network)
        self.layers = Ensemble(count, (self.trunk.features, *hidden, actions))

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [K, B, n]."""
        values: Tensor = self.layers(self.trunk(observation))
        return values
