"""What comes from outside this package: named by an entry point of an installed package, or as module:name."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Collection, Mapping
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any, Literal

from apexrl.errors import ConfigError

Kind = Literal["agents", "topologies", "callbacks"]

_shipped: dict[Kind, Collection[str]] = {}


def ship(kind: Kind, names: Collection[str]) -> None:
    """Reserve the ``names`` that this package ships: an installed package's entry point cannot take one."""
    _shipped[kind] = names
    installed.cache_clear()


@functools.cache
def installed(kind: Kind) -> Mapping[str, EntryPoint]:
    """What installed packages offer in the entry point group ``apexrl.agents``, ``apexrl.topologies`` or
    ``apexrl.callbacks``, by name.

    One with a name that this package ships is left out, with a warning.
    """
    here = Path.cwd()  # may be anybody's folder, with a distribution in it
    installed_here = distributions(path=[entry for entry in sys.path if Path(entry).resolve() != here])
    points = [point for package in installed_here for point in package.entry_points if point.group == f"apexrl.{kind}"]
    found = {point.name: point for point in reversed(points)}  # of one name, the first on Python's path
    for name in found.keys() & set(_shipped.get(kind, ())):
        warnings.warn(
            f"apexrl ships {name!r}, so {found[name].value}, which an installed package offers under that name "
            f"(entry point group apexrl.{kind}), is left out: write {found[name].value} to use it",
            stacklevel=2,
        )
        del found[name]
    return found


def imported(what: str, where: str) -> Any:
    """What ``module:name`` names; None: the module has nothing of that name.

    Args:
        what: it is, for errors: ``agent 'own:Agent'``.

    Raises:
        ConfigError: a module is missing.
    """
    module, _, name = where.partition(":")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ConfigError(f"{what} needs PyTorch; run: pip install 'apexrl[train]'") from error
        raise ConfigError(
            f"{what}: there is no module {error.name!r}; it must be installed or in the current folder"
        ) from error


def is_outside(kind: Kind, name: str) -> bool:
    """Whether ``name`` is not one that this package ships, as far as its form tells."""
    return ":" in name or name in installed(kind)
