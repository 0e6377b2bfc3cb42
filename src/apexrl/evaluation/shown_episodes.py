"""Episodes that a trained agent plays for somebody to look at: pictures, with what the agent expects drawn below."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from apexrl.config import Config, EnvConfig
from apexrl.envs import FrameStack, make_vector
from apexrl.evaluation.rendered_env import make_rendering, picture_of, rendered
from apexrl.roles.env_arrays import zeroed

if TYPE_CHECKING:
    from apexrl.evaluation.loaded_agent import LoadedAgent

Picture = NDArray[np.uint8]
"""``[height, width, 3]``."""

LEAST_HEIGHT: Final = 320
"""Smaller pictures are enlarged by a whole factor, so that text below is legible."""
LARGEST_SIDE: Final = 960
STRIP: Final = 72
"""Height of what is drawn below a picture, pixels."""


class Moment(NamedTuple):
    """One picture of an episode."""

    picture: Picture
    step: int
    """Environment steps so far."""
    episode_return: float
    """Sum of the learner's rewards so far; at the end the environment's own return."""
    expected: float | None
    """Discounted return that the agent expects from here, in the learner's rewards. None: it has no estimate, or a
    recurrent state, without which its estimate would be of another moment."""
    ended: bool
    """Whether this is an episode's last picture."""


def frames_per_second(config: EnvConfig) -> int:
    """How many pictures of the environment make a second, as it says itself; 30 if it does not."""
    env = make_rendering(config)
    try:
        return max(1, min(120, int(env.metadata.get("render_fps") or 30)))
    finally:
        env.close()


def moments(loaded: LoadedAgent, config: Config, seed: int) -> Iterator[Moment]:
    """Greedy episodes one after another, without end; close the iterator to close the environment.

    Raises:
        EnvError: the environment cannot be made, raised an error, or does not render.
    """
    pictures: list[Picture] = []
    vector = make_vector(rendered(config.env, lambda env: _Eye(env, pictures)), 1, seed)
    with closing(vector):
        frames = FrameStack(vector.spec.stack, 1, vector.spec.observation)
        seen = frames.push(vector.reset(seed))
        expects = getattr(loaded.agent, "expected_returns", None)
        state: Any = None
        step, total, exploration = 0, 0.0, np.zeros(1, np.float32)
        while True:
            expected = float(expects(seen)[0]) if expects is not None and not state else None
            actions, _, state = loaded.agent.act(seen, state, exploration, greedy=True)
            yield from (Moment(picture, step, total, expected, False) for picture in _taken(pictures))
            stepped = vector.step(np.asarray(actions))
            seen = frames.push(stepped.observation, stepped.starts)
            if state and stepped.starts.any():
                state = zeroed(state, stepped.starts)
            if stepped.starts[0]:
                step, total = 0, 0.0
                continue
            step, total = step + 1, total + float(stepped.reward[0])
            for episode in stepped.episodes:
                last = _taken(pictures)[-1:]
                yield from (Moment(picture, step, episode.episode_return, None, True) for picture in last)


def drawn(moment: Moment, line: list[float], title: str) -> Picture:
    """The picture with step, return and the agent's expectation below it; both sides are even, as films need them.

    Args:
        line: expectations of the episode so far; the newest is appended here.
        title: of the episode, in a few words.
    """
    from PIL import Image, ImageDraw, ImageFont

    if moment.expected is not None:
        line.append(moment.expected)
    picture = _enlarged(moment.picture)
    height, width = picture.shape[0] // 2 * 2, max(240, picture.shape[1] // 2 * 2)
    page = Image.new("RGB", (width, height + STRIP), (20, 23, 26))
    page.paste(Image.fromarray(picture), ((width - picture.shape[1]) // 2, 0))
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(size=13)
    text = f"{title}   step {moment.step}   return {moment.episode_return:.4g}"
    text += f"   expects {line[-1]:.4g}" if line else ""
    pen.text((8, height + 4), text, fill=(230, 232, 234), font=font)
    if len(line) > 1:
        low, high = min(line), max(line)
        points = line[:: max(1, len(line) // 400)]
        room, scale = STRIP - 32, 1.0 / (high - low) if high > low else 0.0
        places = [
            (8 + (width - 16) * place / (len(points) - 1), height + STRIP - 6 - room * (value - low) * scale)
            for place, value in enumerate(points)
        ]
        pen.line(places, fill=(86, 180, 233), width=2)
    return np.asarray(page)


def _enlarged(picture: Picture) -> Picture:
    height, width = picture.shape[:2]
    if height < LEAST_HEIGHT:
        factor = max(1, min(round(LEAST_HEIGHT / height), LARGEST_SIDE // max(height, width)))
        return np.repeat(np.repeat(picture, factor, axis=0), factor, axis=1)
    step = -(-max(height, width) // LARGEST_SIDE)
    return np.ascontiguousarray(picture[::step, ::step])


def _taken(pictures: list[Picture]) -> list[Picture]:
    found = pictures[:]
    pictures.clear()
    return found


class _Eye(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps a picture of every reset and step until it is taken."""

    def __init__(self, env: gym.Env[Any, Any], pictures: list[Picture]) -> None:
        super().__init__(env)
        self._pictures = pictures

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        found = self.env.reset(seed=seed, options=options)
        self._look()
        return found

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        found = self.env.step(action)
        self._look()
        return found

    def _look(self) -> None:
        self._pictures.append(picture_of(self.env))
