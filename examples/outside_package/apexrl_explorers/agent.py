"""A dueling DQN whose priorities are capped, so that a few surprising steps do not fill every batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from apexrl.agents.dqn import DQN
from apexrl.config import AgentConfig
from apexrl.config.settings import Range
from apexrl.protocols import Arrays
from apexrl.spec import EnvSpec


class CappedDQN(DQN):
    """A DQN that reports no priority above ``priority_cap``."""

    @dataclass(frozen=True)
    class Settings:
        """Settings of capped_dqn."""

        priority_cap: Annotated[float, Range(above=0)] = 1.0
        """Largest |δ| that counts, in units of return."""

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str, seed: int) -> None:
        super().__init__(spec, config, device, seed)
        self._cap = config.agent_settings["priority_cap"]

    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        return np.minimum(super().priorities(items), self._cap)
