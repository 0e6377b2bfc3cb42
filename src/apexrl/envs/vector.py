"""B environments stepped together: named observations, learner's rewards, finished episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from apexrl.envs.spaces import Leaf, env_spec, flatten_observation, observation_leaves
from apexrl.errors import EnvError
from apexrl.spec import Array

LIFE_LOST = "life_lost"  # info key: this end is one of a life, the game goes on

Bools = NDArray[np.bool_]


class Episode(NamedTuple):
    """A finished episode: its unclipped return, whole games even where a lost life ends the learner's episode."""

    env: int
    episode_return: float  # sum of the environment's own rewards
    length: int  # environment steps


class Stepped(NamedTuple):
    """What one step of B environments yields. ``reward``, ``terminated``, ``truncated`` are results of the action."""

    observation: dict[str, Array]  # name -> [B, *shape]
    reward: NDArray[np.float32]  # [B], clipped when so configured
    terminated: Bools  # [B]
    truncated: Bools  # [B]
    starts: Bools  # [B], the observation begins an episode: the action was ignored, the reward is 0
    episodes: list[Episode]  # finished by this step


class Rows(NamedTuple):
    observation: dict[str, Array]
    reward: NDArray[np.float64]  # [B]
    terminated: Bools  # [B]
    truncated: Bools  # [B]
    life_lost: Bools | None  # [B]; None: nowhere


class Backend(Protocol):
    """B environments with NEXT_STEP autoreset: the step after an end resets and ignores the action."""

    num_envs: int
    observation_space: gym.Space[Any]  # of one environment
    action_space: gym.Space[Any]  # of one environment

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]: ...
    def step(self, actions: Array, starting: Bools) -> Rows: ...
    def close(self) -> None: ...


class NativeRows:
    """An environment that is vectorised by itself (``vector_entry_point``)."""

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], name: str) -> None:
        self._env, self._name = env, name
        self.num_envs = env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self._leaves = observation_leaves(self.observation_space)

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]:
        with blame(self._name, "reset"):
            observation, _ = self._env.reset(seed=seeds[0])
        return {name: array.copy() for name, array in flatten_observation(self._leaves, observation).items()}

    def step(self, actions: Array, starting: Bools) -> Rows:
        with blame(self._name, "step"):
            observation, reward, terminated, truncated, _ = self._env.step(actions)
        # An actor holds an observation until after the next step, and some environments write into the same array.
        flat = {name: array.copy() for name, array in flatten_observation(self._leaves, observation).items()}
        return Rows(flat, reward, terminated, truncated, None)

    def close(self) -> None:
        with blame(self._name, "close"):
            self._env.close()


class LoopRows:
    """Single environments, one after the other.

    ``gymnasium.vector.SyncVectorEnv`` does the same (a test holds the two equal), but merges every ``info`` and
    copies observations twice: most of the time of a small environment.
    """

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], name: str) -> None:
        self._envs, self._name = list(envs), name
        self.num_envs = len(self._envs)
        self.observation_space, self.action_space = self._envs[0].observation_space, self._envs[0].action_space
        self._leaves = observation_leaves(self.observation_space)
        for index, env in enumerate(self._envs):
            if env.observation_space != self.observation_space or env.action_space != self.action_space:
                raise EnvError(f"{name}: environment {index} has other spaces than environment 0; all must be alike")

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]:
        observations = self._empty()
        for index, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            with blame(self._name, "reset", index):
                observation, _ = env.reset(seed=seed)
            for leaf in self._leaves:
                shape = np.shape(_pick(observation, leaf))
                if shape != leaf.field.shape:
                    raise EnvError(
                        f"{self._name}: reset() of environment {index} returned {leaf.name} of shape {shape}, but its "
                        f"observation_space declares {leaf.field.shape}"
                    )
            self._store(observations, index, observation)
        return observations

    def step(self, actions: Array, starting: Bools) -> Rows:
        observations = self._empty()
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        life_lost: Bools | None = None
        # Python integers for Discrete spaces: cheaper for the environments than NumPy scalars, and always accepted.
        each: Sequence[Any] = actions.tolist() if actions.ndim == 1 else actions  # type: ignore[assignment]
        for index, (env, start) in enumerate(zip(self._envs, starting.tolist(), strict=True)):
            if start:
                with blame(self._name, "reset", index):
                    observation, _ = env.reset()
            else:
                with blame(self._name, "step", index):
                    observation, reward[index], terminated[index], truncated[index], info = env.step(each[index])
                if (terminated[index] or truncated[index]) and info.get(LIFE_LOST):
                    life_lost = np.zeros(self.num_envs, np.bool_) if life_lost is None else life_lost
                    life_lost[index] = True
            self._store(observations, index, observation)
        for leaf in self._leaves:
            if leaf.field.dtype.startswith("float") and not np.isfinite(observations[leaf.name]).all():
                rows = np.flatnonzero(~np.isfinite(observations[leaf.name].reshape(self.num_envs, -1)).all(axis=1))
                raise EnvError(
                    f"environment {self._name} (number {rows[0]} of this actor) returned NaN or infinity in "
                    f"{leaf.name!r}: "
                    "mend the environment, or wrap it so that it ends the episode instead"
                )
        return Rows(observations, reward, terminated, truncated, life_lost)

    def close(self) -> None:
        errors = []
        for index, env in enumerate(self._envs):
            try:
                with blame(self._name, "close", index):
                    env.close()
            except EnvError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _empty(self) -> dict[str, Array]:
        return {leaf.name: np.empty((self.num_envs, *leaf.field.shape), leaf.field.dtype) for leaf in self._leaves}

    def _store(self, observations: dict[str, Array], index: int, observation: Any) -> None:
        for leaf in self._leaves:
            value = _pick(observation, leaf)
            if np.shape(value) != leaf.field.shape:
                raise EnvError(
                    f"environment {self._name} (number {index} of this actor) returned {leaf.name!r} of shape "
                    f"{list(np.shape(value))}; its observation space says {list(leaf.field.shape)}"
                )
            observations[leaf.name][index] = value - leaf.start if leaf.start else value


class VectorEnv:
    """B environments with NEXT_STEP autoreset, as actors and evaluators step them.

    ``step`` returns, after an end, the row of the reset: its action was ignored, its reward is 0 and ``starts`` is
    true. The final observation is the observation of the step that ended.

    Args:
        backend: the environments.
        name: how errors call them.
        stack: frames that the agent sees at once, for ``spec``; observations come unstacked.
        reward_clip: largest magnitude of the learner's reward; 0 leaves it. Episode returns are never clipped.
        seed: of all B environments, which get distinct ones.
    """

    def __init__(self, backend: Backend, name: str, stack: int = 1, reward_clip: float = 0.0, seed: int = 0) -> None:
        self.num_envs = backend.num_envs
        self.name = name
        self.spec = env_spec(backend.observation_space, backend.action_space, stack)
        self._backend = backend
        self._clip = reward_clip
        self._seed = seed
        space = backend.action_space
        self._action_start = int(space.start) if isinstance(space, gym.spaces.Discrete) else 0
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._closed = False

    def reset(self, seed: int | None = None) -> dict[str, Array]:
        """Begin anew everywhere; ``seed`` replaces the one given at construction. Returns name -> [B, *shape].

        Raises:
            EnvError: an environment raised an error, or its observation does not fit its space.
        """
        self._seed = self._seed if seed is None else seed
        seeds = np.random.SeedSequence(self._seed).generate_state(self.num_envs, np.uint32)
        observation = self._backend.reset([int(s) for s in seeds])
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._returns[:], self._lengths[:] = 0.0, 0
        return observation

    def step(self, actions: Array) -> Stepped:
        """Step every environment. ``actions`` [B] integers from 0, or [B, *shape] float32.

        Raises:
            EnvError: an environment raised an error, or a reward is NaN or infinite.
        """
        starts = self._ended
        rows = self._backend.step(actions + self._action_start if self._action_start else actions, starts)
        reward = rows.reward
        if not np.isfinite(reward).all():
            index = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise EnvError(f"{self.name}: environment {index} returned the reward {reward[index]}; it must be finite")
        self._returns += reward
        self._lengths += ~starts
        self._ended = ended = rows.terminated | rows.truncated
        episodes: list[Episode] = []
        if ended.any():
            games = ended if rows.life_lost is None else ended & ~rows.life_lost
            for index in np.flatnonzero(games).tolist():
                episodes.append(Episode(index, float(self._returns[index]), int(self._lengths[index])))
            self._returns[games], self._lengths[games] = 0.0, 0
        learned = reward.astype(np.float32, copy=False)
        if self._clip:
            learned = np.clip(learned, -self._clip, self._clip)
        return Stepped(rows.observation, learned, rows.terminated, rows.truncated, starts, episodes)

    def close(self) -> None:
        """Close every environment; closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._backend.close()


@contextmanager
def blame(name: str, call: str, index: int | None = None) -> Iterator[None]:
    """Turn whatever an environment raises into an EnvError that names it; the traceback stays attached."""
    try:
        yield
    except Exception as error:
        which = "" if index is None else f" of environment {index}"
        raise EnvError(f"{name}: {call}(){which} raised {type(error).__name__}: {error}") from error


def _pick(observation: Any, leaf: Leaf) -> Any:
    for key in leaf.path:
        observation = observation[key]
    return observation
