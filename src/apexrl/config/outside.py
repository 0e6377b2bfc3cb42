"""Agents and topologies from outside this package: named by an entry point of an installed package, or module:name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

Kind = Literal["agents", "topologies"]


@functools.cache
def installed(kind: Kind) -> Mapping[str, EntryPoint]:
    """What installed packages offer in the entry point group ``apexrl.agents`` or ``apexrl.topologies``, by name."""
    return {point.name: point for point in entry_points(group=f"apexrl.{kind}")}


def is_outside(kind: Kind, name: str) -> bool:
    """Whether ``name`` is not one that this package ships, as far as its form tells."""
    return ":" in name or name in installed(kind)
