"""What a preset is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from apexrl.config import Config


@dataclass(frozen=True)
class Preset:
    """A named configuration, and what it takes to run it."""

    config: Config
    summary: str
    """One line for ``apexrl list``: what is learned, and when it counts as solved."""
    extra: str = ""
    """The extra of this package that brings the environment; empty when ``train`` does."""
    modules: tuple[str, ...] = ()
    """What that extra installs, by import name."""
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Other agents that it is known to work with: name -> flat settings, beyond those that the name stands for."""

    @property
    def missing(self) -> bool:
        """Whether the extra is needed and not installed."""
        return any(find_spec(module) is None for module in self.modules)
