"""Critics of discrete actions: observations -> a value of every action, K times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from apexrl.networks.ensemble import Ensemble
from apexrl.networks.memory import MemoryChoice
from apexrl.networks.recall import CRITIC, trunk_for
from apexrl.spec import EnvSpec


class ActionValues(nn.Module):
    """K critics that share nothing but what encodes images.

    Args:
        hidden: units of every critic's layers.
        count: K.
        actions: n.
        memory: that all of them have, if any.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        count: int,
        actions: int,
        image_units: int = 512,
        network: str = "",
        memory: MemoryChoice | None = None,
    ) -> None:
        super().__init__()
        self.trunk = trunk_for(spec, (), image_units, network, memory=memory, prefix=CRITIC)
        self.layers = Ensemble(count, (self.trunk.features, *hidden, actions))

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [K, B, n]."""
        values: Tensor = self.layers(self.trunk(observation))
        return values
