"""Environments of EnvPool (Weng et al. 2022, arXiv 2206.10558), stepped by its threads, together or as they finish."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.envs.atari_game import emulator_seed
from apexrl.envs.lockstep import Bools, EnvCall, Rows, Which, blame, refuse_not_finite
from apexrl.envs.spaces import flatten_observation, observation_leaves
from apexrl.errors import EnvError
from apexrl.spec import Array

PREFIX = "envpool:"
"""Of an environment's id: ``envpool:Pong-v5``."""

State = tuple[dict[str, Array], Any, Any, Any, Any]
"""Named observations, rewards, terminated, truncated, numbers of the environments."""


class EnvPoolRows:
    """B environments of a pool. ``send`` begins their steps, ``receive`` waits for them.

    The keyword ``batch_size`` makes it asynchronous, where environments need not go in lock-step: the pool then answers
    with so many at a time, whichever are done. Arrays are the pool's own, which it does not use again.

    Args:
        kwargs: of ``envpool.make``, as ``num_threads`` and ``batch_size``, and the task's own.
        partial: whether answers may have rows of some environments.
        threads: that step environments, unless ``kwargs`` say how many.
        name: of the environment, for errors.
        call: entered around every call.

    Raises:
        EnvError: ``batch_size`` does not divide the number of environments.
    """

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_envs: int,
        partial: bool,
        threads: int,
        name: str,
        call: EnvCall = nullcontext,
    ) -> None:
        self._name, self._call, self._task = name, call, name.removeprefix(PREFIX)
        self._library: Any = importlib.import_module("envpool")
        given = {"num_threads": min(threads, num_envs), **kwargs}
        batch = given.pop("batch_size", 0) or num_envs
        if partial and num_envs % batch:
            raise EnvError(
                f"{name}: batch_size is {batch}, which does not divide the {num_envs} environments of an actor: "
                "change it, or --envs-per-actor"
            )
        self._batch = batch if partial else num_envs
        self._kwargs = {**given, "num_envs": num_envs, "batch_size": self._batch}
        self.num_envs, self.lockstep = num_envs, self._batch == num_envs
        self.observation_space, self.action_space, _ = pool_spaces(name, kwargs)
        self.leaves = observation_leaves(self.observation_space)
        self._pool: Any = None  # its seeds are those that it is made with

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]:
        """Make the pool anew with these seeds; steps under way are dropped."""
        with self._call(), blame(self._name, "reset"), _quiet():
            self.close()
            own = [emulator_seed(seed) for seed in seeds]
            self._pool = self._library.make_gymnasium(self._task, seed=own, **self._kwargs)
            self._pool.async_reset()
            named, *_, numbers = self._received(self.num_envs)
        order = np.argsort(numbers)
        return {name: array[order] for name, array in named.items()}

    def send(self, actions: Array, starting: Bools, which: Which = None) -> None:
        numbers = np.arange(self.num_envs) if which is None else which
        with self._call(), blame(self._name, "step"):
            self._pool.send(actions, numbers.astype(np.int32))

    def receive(self, least: int = 1, timeout: float = 0.0) -> Rows | None:
        """The steps that are done, at least ``least`` of them, however long it takes."""
        with self._call(), blame(self._name, "step"):
            named, reward, terminated, truncated, numbers = self._received(least)
        rows = Rows(named, reward.astype(np.float64), terminated, truncated, None, numbers.astype(np.int64))
        if self.lockstep:
            if (numbers[1:] < numbers[:-1]).any():
                rows = _ordered(rows)
            rows = rows._replace(which=None)
        refuse_not_finite(rows, self.leaves, self._name)
        return rows

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _received(self, least: int) -> State:
        """What comes until there are so many rows."""
        parts: list[State] = []
        while len(parts) * self._batch < least:
            seen, reward, terminated, truncated, info = self._pool.recv()
            parts.append((flatten_observation(self.leaves, seen), reward, terminated, truncated, info["env_id"]))
        if len(parts) == 1:
            return parts[0]
        observations, *others = zip(*parts, strict=True)
        named = {name: np.concatenate([part[name] for part in observations]) for name in observations[0]}
        reward, terminated, truncated, numbers = (np.concatenate(arrays) for arrays in others)
        return named, reward, terminated, truncated, numbers


def _ordered(rows: Rows) -> Rows:
    assert rows.which is not None
    order = np.argsort(rows.which)
    named = {name: array[order] for name, array in rows.observation.items()}
    return Rows(named, rows.reward[order], rows.terminated[order], rows.truncated[order], None, rows.which[order])


def pool_spaces(name: str, kwargs: Mapping[str, Any]) -> tuple[gym.Space[Any], gym.Space[Any], int | None]:
    """Observations, actions and time limit of a task with the keywords ``kwargs``.

    Raises:
        EnvError: there is no such task.
    """
    library: Any = importlib.import_module("envpool")
    task = name.removeprefix(PREFIX)
    if task not in library.list_all_envs():
        raise EnvError(f"EnvPool has no task {task}: python -c 'import envpool; print(envpool.list_all_envs())'")
    own = {key: value for key, value in kwargs.items() if key != "batch_size"}
    with _quiet():
        spec = library.make_spec(task, **own)
        return spec.gymnasium_observation_space, spec.gymnasium_action_space, spec.config.max_episode_steps


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Gymnasium's warnings of bounds in double precision, which EnvPool gives to boxes of float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
