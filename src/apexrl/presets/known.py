"""``Preset``: settings for one environment, with those of each agent that was tried on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from apexrl.agents import with_agent
from apexrl.config import Config


@dataclass(frozen=True)
class Preset:
    """A named configuration, and what it takes to run it."""

    ground: Config
    """Settings for every agent: environment, actors, when the run ends, and what several agents share."""
    summary: str
    """One line for ``apexrl list``: what is learned, and when it counts as solved."""
    extra: str = ""
    """The extra of this package that brings the environment; empty when ``train`` does."""
    modules: tuple[str, ...] = ()
    """The packages that the extra installs, by import name."""
    agent: str = "dueling_dqn"
    """Whose settings it has unless another agent is asked for."""
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Agents that it is known to work with: name -> flat settings, beyond those that the name stands for."""
    topologies: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Where a topology wants other settings of an agent than those: topology -> agent -> flat settings."""

    @cached_property
    def config(self) -> Config:
        """With its own agent."""
        return with_agent(self.ground, self.agent, self.ground, self.agents)

    @property
    def missing(self) -> bool:
        """Whether the extra is needed and not installed."""
        return any(find_spec(module) is None for module in self.modules)
