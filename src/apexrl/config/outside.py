"""Agents and topologies from outside this package: named by an entry point of an installed package, or module:name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Literal

Kind = Literal["agents", "topologies"]


@functools.cache
def installed(kind: Kind) -> Mapping[str, EntryPoint]:
    """What installed packages offer in the entry point group ``apexrl.agents`` or ``apexrl.topologies``, by name."""
    here = Path.cwd()  # may be anybody's folder, with a distribution in it
    installed_here = distributions(path=[entry for entry in sys.path if Path(entry).resolve() != here])
    points = [point for package in installed_here for point in package.entry_points if point.group == f"apexrl.{kind}"]
    return {point.name: point for point in reversed(points)}  # of one name, the first on Python's path


def is_outside(kind: Kind, name: str) -> bool:
    """Whether ``name`` is not one that this package ships, as far as its form tells."""
    return ":" in name or name in installed(kind)
