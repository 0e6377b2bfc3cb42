"""Atari games stepped by ale-py's own threads: the episodes of ``AtariGame``, on several processor cores at once."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.envs.atari_game import FRAME_SKIP, MOST_NO_OPS, SIDE, PlainGame, emulator_seed
from apexrl.envs.lockstep import Bools, EnvCall, Rows, Which, blame
from apexrl.envs.spaces import observation_leaves
from apexrl.spec import OBSERVATION, Array

_FIRST = np.zeros(1, np.int64)
_NO_SEED = np.full(1, -1)
_NO_LIMIT = 2**31 - 1 - FRAME_SKIP  # frames; more than a run makes


class AtariRows:
    """B games in ale-py's ``AtariVectorEnv``, in lock-step: ``send`` makes the step.

    Its rows are those of ``LoopRows`` over ``LifeLossEnds(TimeLimit(AtariGame))`` with the same seeds. A vector
    environment steps all of its games or none. So games are each in one of their own where rows may come without a step
    (behind a lost life) or with a reset that the emulator does not make (behind ``step_limit``), else all in one, whose
    frames are not copied.

    Args:
        life_loss_ends: a lost life ends the learner's episode.
        step_limit: environment steps after which an episode is truncated; 0: none.
        cores: that may step at the same time.
        name: of the environment, for errors.
        call: entered around every call.
    """

    def __init__(
        self,
        game: PlainGame,
        num_envs: int,
        life_loss_ends: bool,
        step_limit: int,
        cores: int,
        name: str,
        call: EnvCall = nullcontext,
    ) -> None:
        self._name, self._call = name, call
        self._limit = step_limit or np.inf
        self._ends = life_loss_ends
        # Games that step at the same time: a thread that is done waits for its answer's reader
        self._window = 2 * cores
        self.num_envs, self.lockstep = num_envs, True
        self._pools = [_pool(game, 1, 1)]
        _, info = self._pools[0].reset()
        if step_limit or (life_loss_ends and info["lives"][0]):
            self._pools += [_pool(game, 1, 1) for _ in range(num_envs - 1)]
        elif num_envs > 1:
            self._pools = [_pool(game, num_envs, cores)]
        self.observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
        self.leaves = observation_leaves(self.observation_space)
        self.action_space: gym.Space[Any] = self._pools[0].single_action_space
        self._alone = len(self._pools) == num_envs
        self._strength = np.ones(num_envs, np.float32)
        self._lives = np.zeros(num_envs, np.int64)
        self._steps = np.zeros(num_envs, np.int64)  # of this episode
        self._lost = np.zeros(num_envs, np.bool_)  # the last row ended with a lost life
        self._cut = np.zeros(num_envs, np.bool_)  # … with ``step_limit``
        self._frames = np.empty((num_envs, SIDE, SIDE), np.uint8)  # the newest
        self._rows: Rows | None = None

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]:
        numbers = np.array([emulator_seed(seed) for seed in seeds])
        with self._call(), blame(self._name, "reset"):
            parts = np.split(numbers, len(self._pools))
            found = [pool.reset(seed=part) for pool, part in zip(self._pools, parts, strict=True)]
        self._frames = np.concatenate([frames[:, 0] for frames, _ in found])
        self._lives = np.concatenate([info["lives"] for _, info in found])
        self._steps[:], self._lost[:], self._cut[:] = 0, False, False
        return {OBSERVATION: self._frames}

    def send(self, actions: Array, starting: Bools, which: Which = None) -> None:
        with self._call(), blame(self._name, "step"):
            self._rows = self._step_alone(actions, starting) if self._alone else self._step_together(actions)

    def receive(self, least: int = 1, timeout: float = 0.0) -> Rows | None:
        rows, self._rows = self._rows, None
        return rows

    def close(self) -> None:
        self._pools.clear()

    def _step_together(self, actions: Array) -> Rows:
        emulators = self._pools[0].ale
        emulators.send(actions, self._strength)
        frames, reward, terminated, truncated, _ = emulators.recv()
        return Rows({OBSERVATION: frames[:, 0]}, reward.astype(np.float64), terminated, truncated, None)

    def _step_alone(self, actions: Array, starting: Bools) -> Rows:
        count = self.num_envs
        frames = np.empty_like(self._frames)  # a new array: whoever has the last one may keep it
        reward = np.zeros(count)
        terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        before, strength = self._lives.copy(), self._strength[:1]
        resumed, again = starting & self._lost, starting & self._cut
        frames[resumed] = self._frames[resumed]
        for number in np.flatnonzero(again).tolist():
            shown, info = self._pools[number].ale.reset(_FIRST, _NO_SEED)
            frames[number], self._lives[number] = shown[0, 0], info["lives"][0]
        stepping = np.flatnonzero(~(resumed | again)).tolist()
        for place in range(len(stepping) + self._window):
            if place < len(stepping):
                number = stepping[place]
                self._pools[number].ale.send(actions[number : number + 1], strength)
            if self._window <= place:
                number = stepping[place - self._window]
                shown, pay, over, cut, info = self._pools[number].ale.recv()
                frames[number], self._lives[number] = shown[0, 0], info["lives"][0]
                reward[number], terminated[number], truncated[number] = pay[0], over[0], cut[0]
        self._frames = frames
        self._steps[~resumed] += 1
        self._steps[starting & ~resumed] = 0
        self._cut = self._steps >= self._limit
        truncated |= self._cut
        self._lost = (self._lives < before) & ~(starting | terminated | truncated) & self._ends
        return Rows({OBSERVATION: frames}, reward, terminated | self._lost, truncated, self._lost)


def _pool(game: PlainGame, num_envs: int, threads: int) -> Any:
    """ale-py's vector environment of single frames, with rewards as they are."""
    return importlib.import_module("ale_py.vector_env").AtariVectorEnv(
        game.rom,
        num_envs,
        num_threads=threads,
        max_num_frames_per_episode=game.frame_limit or _NO_LIMIT,
        repeat_action_probability=game.sticky,
        full_action_space=game.all_actions,
        img_height=SIDE,
        img_width=SIDE,
        stack_num=1,
        frameskip=FRAME_SKIP,
        noop_max=MOST_NO_OPS + 1,
        reward_clipping=False,
        use_fire_reset=False,
    )
