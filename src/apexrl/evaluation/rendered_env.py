"""An environment that renders pictures, for films and for the dashboard."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from apexrl.config import EnvConfig
from apexrl.envs import env_name, make_env
from apexrl.envs.envpool_rows import PREFIX
from apexrl.errors import EnvError

_PICTURES = "pictures need an environment that takes render_mode='rgb_array'"


def make_rendering(config: EnvConfig) -> gym.Env[Any, Any]:
    """The environment of ``config``, made to render.

    Raises:
        EnvError: it cannot be made, or not with a ``render_mode``.
    """
    for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        os.environ.setdefault(driver, "dummy")  # pygame needs no window and no loudspeakers
    try:
        return make_env(config, render_mode="rgb_array")
    except EnvError as error:
        raise EnvError(f"{error} ({_PICTURES})" if _takes_none(error) else str(error)) from error


def _takes_none(error: EnvError) -> bool:
    said = str(error.__cause__ or error)
    return "argument 'render_mode'" in said or "takes no arguments" in said


def rendered(config: EnvConfig, wrap: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]) -> EnvConfig:
    """The same environment, rendering, in what ``wrap`` makes of it."""

    def make(**kwargs: Any) -> gym.Env[Any, Any]:
        return wrap(make_rendering(dataclasses.replace(config, env_kwargs=kwargs)))

    make.__qualname__ = env_name(config).removeprefix(PREFIX)  # by which a pool of environments would be made
    # make() has wrapped the environment already
    return dataclasses.replace(config, env=make, atari=False, last_action_reward=False, max_episode_steps=0)


def picture_of(env: gym.Env[Any, Any]) -> NDArray[np.uint8]:
    """What it shows now, uint8 [height, width, 3].

    Raises:
        EnvError: it renders nothing.
    """
    try:
        picture: Any = env.render()
    except NotImplementedError as error:  # what Gymnasium raises where an environment has no render()
        raise EnvError(f"it has no render(): {_PICTURES}") from error
    if not isinstance(picture, np.ndarray) or picture.ndim != 3:
        raise EnvError(f"it renders no picture: {_PICTURES}")
    return np.asarray(picture[:, :, :3], np.uint8)
