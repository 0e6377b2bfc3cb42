"""Videos of episodes as MP4 (extra ``video``, which brings the encoder)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.config import EnvConfig
from apexrl.config.paths import expanded
from apexrl.errors import EnvError
from apexrl.evaluation.rendered_env import picture_of, rendered


def filmed(config: EnvConfig, folder: Path) -> tuple[EnvConfig, list[Path]]:
    """The same environment, recorded.

    Returns:
        An EnvConfig whose environments write ``episode-001.mp4`` … into ``folder``, and the list of files, which
        grows as they are written.

    Raises:
        EnvError: the encoder is not installed.
    """
    try:
        import imageio_ffmpeg  # noqa: F401
    except ModuleNotFoundError as error:
        raise EnvError("videos need an encoder that is not installed; run: pip install 'apexrl[video]'") from error
    films: list[Path] = []
    folder = expanded(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return rendered(config, lambda env: Camera(env, folder, films)), films


class Camera(gym.Wrapper[Any, Any, Any, Any]):
    """Records whole episodes; a lost life, which only ends the learner's episode, does not end the video."""

    def __init__(self, env: gym.Env[Any, Any], folder: Path, films: list[Path]) -> None:
        super().__init__(env)
        self._folder, self._films = folder, films
        self._frames: list[np.ndarray[Any, Any]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._shoot()
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._shoot()
        if (terminated or truncated) and not info.get("life_lost"):
            self._develop()
        return observation, reward, terminated, truncated, info

    def _shoot(self) -> None:
        self._frames.append(picture_of(self.env))

    def _develop(self) -> None:
        from imageio_ffmpeg import write_frames

        path = self._folder / f"episode-{len(self._films) + 1:03d}.mp4"
        height, width = self._frames[0].shape[:2]
        fps = int(self.env.metadata.get("render_fps") or 30)
        # encoders need even sides: an odd last row or column is left out
        height, width = height - height % 2, width - width % 2
        film = write_frames(str(path), (width, height), fps=fps, macro_block_size=1, quality=7)
        film.send(None)
        for frame in self._frames:
            film.send(np.ascontiguousarray(frame[:height, :width]))
        film.close()
        self._frames = []
        self._films.append(path)
