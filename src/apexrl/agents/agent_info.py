"""What the catalogue says of an agent, and the families of settings that agents read. Loads no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from apexrl.config import agent_settings as families
from apexrl.config import value_settings as values
from apexrl.config.schema import DatasetSettings, HindsightSettings, ReplaySettings


class AgentInfo(NamedTuple):
    """One shipped agent."""

    where: str
    """``module:Class``."""
    needs: str
    """Of the environment."""
    reads: tuple[type[Any] | str, ...]
    """Families of settings, and single ones by name. What no agent names here, all of them read."""
    description: str
    citation: str
    settings: Mapping[str, Any]
    """Flat names of ``apexrl.config``: what the agent's name stands for. Of the agent's own settings only such as it
    reads; what another agent's name has set goes back before these are set (``agents.with_agent``)."""
    identity: tuple[str, ...] = ()
    """Of ``settings`` those without which it would be another agent."""
    item: Literal["transition", "sequence", "unroll"] = "transition"
    """What it learns from (``protocols.Item.kind``)."""
    offline: bool = False
    """Made to learn from a dataset alone."""
    by_gradients: bool = True
    """Gradients alone make it what it is; else it has running statistics, its weights are scaled after updates, or
    it is reset."""


DISCRETE = "Discrete, MultiDiscrete or MultiBinary actions"
BOX = "bounded Box actions"
BOX_OR_BOTH = "bounded Box actions, or a Tuple or Dict of them and discrete ones"
ANY = "Discrete, MultiDiscrete, MultiBinary or bounded Box actions"
ANY_OR_BOTH = "Discrete, MultiDiscrete, MultiBinary or Box actions, or a Tuple or Dict of them"

# What an agent's class reads. Unrolls are queued, not kept to be drawn again; and their policy is random by itself.
STEP_SIZE = (families.OptimizerSettings, "anneal", "learning_rate_end")
KEPT = (*STEP_SIZE, ReplaySettings, DatasetSettings, "beta_end", "n_step", "random_start")
REMEMBERS = (families.MemorySettings, families.SequenceSettings)  # of agents with a replay
HORIZON = values.HorizonSettings  # of agents of transitions; those of unrolls change γ alone
SOFT = (*KEPT, HORIZON, HindsightSettings, families.CriticSettings, families.SoftSettings)

# What SAC and discrete SAC stand for alike.
POLYAK: dict[str, Any] = {"polyak": 0.005}  # SB3's and CleanRL's
LEARNED: dict[str, Any] = {"temperature": 0.0}
