"""Ape-X's Atari pipeline: 84×84 grey, action repeat 4, up to 30 no-ops, a lost life ends the learner's episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from apexrl.envs.atari_game import INSTALL, AtariGame, PlainGame
from apexrl.envs.lockstep import LIFE_LOST
from apexrl.errors import EnvError


def atari_env(env: gym.Env[Any, Any], name: str, game: PlainGame | None) -> gym.Env[Any, Any]:
    """Mnih et al. 2015, Methods, as Ape-X uses it (Horgan et al. 2018, appendix C): uint8 [84, 84], one frame.

    Args:
        game: what ``env`` is, if it is ale-py's environment with nothing around it.

    Raises:
        EnvError: not an Atari game, or OpenCV is missing.
    """
    if game is not None:
        return AtariGame(env, game)
    try:
        return gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"the Atari pipeline of {name} needs OpenCV, which is not installed; {INSTALL}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise EnvError(f"{name} is no Atari game that the Atari pipeline can wrap: {error}. Set atari=False") from error


class LifeLossEnds(gym.Wrapper[Any, Any, Any, Any]):
    """A lost life terminates the learner's episode while the game goes on.

    The reset after it returns the current frame again without a step, so no frame and no reward is lost.
    ``info["life_lost"]`` marks such an end, so that returns are counted over whole games.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives = 0
        self._resume: tuple[Any, dict[str, Any]] | None = None  # observation and info after a lost life

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        before, self._lives = self._lives, self._remaining()
        self._resume = None
        if self._lives < before and not (terminated or truncated):
            info[LIFE_LOST] = True
            self._resume = observation, info
            return observation, reward, True, False, info
        return observation, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        resume, self._resume = self._resume, None
        if resume is not None and seed is None:
            return resume
        observation, info = self.env.reset(seed=seed, options=options)
        self._lives = self._remaining()
        return observation, info

    def _remaining(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]
