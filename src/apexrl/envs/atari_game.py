"""Atari games as Mnih et al. 2015 (Methods) show them to an agent: pooled, grey, 84×84, an action for four frames."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from apexrl.errors import EnvError

INSTALL = "run: pip install 'apexrl[atari]'"

SIDE = 84  # pixels of an observation
FRAME_SKIP = 4  # frames of an action
MOST_NO_OPS = 30  # frames at the beginning of a game

SINGLE_ENTRY = "ale_py.env:AtariEnv"


class PlainGame(NamedTuple):
    """A game of ale-py with nothing around it."""

    rom: str
    sticky: float  # probability that a frame repeats the action before
    all_actions: bool  # also those that the game does not use
    frame_limit: int  # frames after which an episode is cut; 0: none


def register_atari(env_id: str) -> None:
    """Make the ``ALE/…`` and ``…NoFrameskip-v4`` ids known to Gymnasium, when the id is one of them.

    Raises:
        EnvError: ale-py is not installed.
    """
    if not env_id.startswith("ALE/") and "NoFrameskip-v" not in env_id:
        return
    try:
        ale_py: Any = importlib.import_module("ale_py")
    except ModuleNotFoundError as error:
        raise EnvError(f"environment {env_id} needs ale-py, which is not installed; {INSTALL}") from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for every actor
    gym.register_envs(ale_py)


def plain_game(env: Any, env_kwargs: Mapping[str, Any]) -> PlainGame | None:
    """What ``AtariGame`` has to know of the environment ``env`` (``EnvConfig.env``); None: it is another one.

    Raises:
        EnvError: ale-py is not installed.
    """
    if not isinstance(env, str):
        return None
    register_atari(env)
    spec = gym.registry.get(env)
    if spec is None or spec.entry_point != SINGLE_ENTRY or spec.additional_wrappers:
        return None
    kwargs = {**spec.kwargs, "frameskip": 1, "repeat_action_probability": 0.0, **env_kwargs}
    if kwargs["frameskip"] != 1 or kwargs.get("continuous") or kwargs.get("sound_obs"):
        return None
    return PlainGame(
        kwargs["game"],
        float(kwargs["repeat_action_probability"]),
        bool(kwargs.get("full_action_space", False)),
        int(kwargs.get("max_num_frames_per_episode") or 0),
    )


def emulator_seed(seed: int) -> int:
    """The emulator's seed, which must not be negative as an int32, from one of 32 bits."""
    return seed & 0x7FFFFFFF


class NoOps:
    """How many no-ops a game begins with: 0 … ``most`` of equal probability, drawn as ale-py's vector environment does.

    That is ``std::uniform_int_distribution`` of GCC's library over ``std::mt19937``: Lemire 2019 (arXiv 1805.10941),
    algorithm 5, for 32 bits.
    """

    def __init__(self, most: int, seed: int | None = None) -> None:
        self._count = most + 1
        self._words = np.random.RandomState(seed)

    def draw(self) -> int:
        refused = (2**32 - self._count) % self._count
        while True:
            product = int(self._words.randint(0, 2**32, dtype=np.uint32)) * self._count
            if product % 2**32 >= refused:
                return product >> 32


class AtariGame(gym.Wrapper[NDArray[np.uint8], Any, Any, Any]):
    """One game: uint8 [84, 84], the larger of an action's last two frames. ``AtariRows`` plays the same episodes.

    It is Gymnasium's ``AtariPreprocessing`` for ale-py's environment (a test holds their frames equal), without the
    pictures in colour that this makes of every frame: a third of the time. Two things differ. A game begins with 0 … 30
    no-ops rather than 1 … 30, drawn as ale-py's vector environment draws them. And the frame limit does not count them.

    Args:
        env: made by Gymnasium for ``game``, with frame skip 1 and no frame limit.

    Raises:
        EnvError: OpenCV is not installed.
    """

    def __init__(self, env: gym.Env[Any, Any], game: PlainGame) -> None:
        super().__init__(env.unwrapped)
        try:
            cv2: Any = importlib.import_module("cv2")
        except ModuleNotFoundError as error:
            raise EnvError(
                f"the Atari pipeline of {game.rom} needs OpenCV, which is not installed; {INSTALL}"
            ) from error
        self._resize, self._filter = cv2.resize, cv2.INTER_AREA
        self._emulator: Any = env.unwrapped.ale  # type: ignore[attr-defined]
        emulator = self._emulator
        self._actions = emulator.getLegalActionSet() if game.all_actions else emulator.getMinimalActionSet()
        self._limit = game.frame_limit or np.inf
        self._frames = 0  # of this episode, without no-ops
        self._no_ops = NoOps(MOST_NO_OPS)
        self._screens = [np.empty(emulator.getScreenDims(), np.uint8) for _ in range(2)]
        self.observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        emulator = self._emulator
        if seed is None:
            emulator.reset_game()
        else:
            emulator.setInt("random_seed", emulator_seed(seed))
            self._no_ops = NoOps(MOST_NO_OPS, emulator_seed(seed))
            self.env.unwrapped.load_game()  # type: ignore[attr-defined]
            emulator.reset_game()
        for _ in range(self._no_ops.draw()):
            emulator.act(0)
            if emulator.game_over():
                emulator.reset_game()
        self._frames = 0
        emulator.getScreenGrayscale(self._screens[0])
        self._screens[1][:] = 0
        return self._pooled(), {"lives": emulator.lives()}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        emulator, chosen, reward = self._emulator, self._actions[action], 0.0
        for left in range(FRAME_SKIP - 1, -1, -1):
            reward += emulator.act(chosen)
            self._frames += 1
            over = emulator.game_over()
            if over or self._frames >= self._limit:
                break
            if left < 2:
                emulator.getScreenGrayscale(self._screens[left])
        cut = not over and self._frames >= self._limit
        return self._pooled(), reward, over, cut, {"lives": emulator.lives()}

    def _pooled(self) -> NDArray[np.uint8]:
        last, before = self._screens
        np.maximum(last, before, out=last)
        return self._resize(last, (SIDE, SIDE), interpolation=self._filter)  # type: ignore[no-any-return]
