"""Topologies: how the roles are wired. Each is one function of its own module, ``(Config, Probe) -> Program``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple, cast

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.topologies.program import BatchesLink, Node, Probe, Program, ReplayLink, WeightsLink

__all__ = ["TOPOLOGIES", "BatchesLink", "Node", "Probe", "Program", "ReplayLink", "Topology", "WeightsLink", "topology"]


class Topology(NamedTuple):
    """One line for ``apexrl list``."""

    summary: str
    source: str


TOPOLOGIES = {
    "apex": Topology(
        "many actors explore and prioritise, one learner samples a prioritized replay",
        "Horgan et al. 2018, arXiv 1803.00933",
    ),
}


def topology(name: str) -> Callable[[Config, Probe], Program]:
    """The function that wires ``name``.

    Raises:
        ConfigError: there is no such topology.
    """
    if name not in TOPOLOGIES:
        near = get_close_matches(name, TOPOLOGIES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TOPOLOGIES)}"
        raise ConfigError(f"there is no topology {name!r}; {hint}")
    module = importlib.import_module(f"apexrl.topologies.{name}")
    return cast("Callable[[Config, Probe], Program]", getattr(module, name))
