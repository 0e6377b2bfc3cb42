"""MinAtar (Young & Tian 2019): Atari's games on 10×10 cells, as ``MinAtar/Breakout-v1`` and so on."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym

from apexrl.errors import EnvError


def register_minatar(env_id: str) -> None:
    """Make the ``MinAtar/…`` ids known to Gymnasium, when the id is one of them. Its package does not do so by itself.

    Raises:
        EnvError: MinAtar is not installed.
    """
    if not env_id.startswith("MinAtar/") or env_id in gym.registry:
        return
    try:
        package: Any = importlib.import_module("minatar.gym")
    except ModuleNotFoundError as error:
        raise EnvError(
            f"environment {env_id} needs MinAtar, which is not installed; run: pip install 'apexrl[minatar]'"
        ) from error
    package.register_envs()
