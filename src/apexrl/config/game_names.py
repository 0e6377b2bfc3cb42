"""Names of environments of several agents: those that PettingZoo gives to what makes them."""

from __future__ import annotations

from typing import Final

MAKERS: Final = ("parallel_env", "env")
"""Functions of a module: of an environment whose agents act at the same time, and of one where they take turns."""


def is_game(name: object) -> bool:
    """Whether an environment's name is that of several agents: ``package.module:parallel_env`` or ``…:env``."""
    return isinstance(name, str) and ":" in name and name.rpartition(":")[2] in MAKERS
