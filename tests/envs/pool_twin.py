"""What ``apexrl.envs.envpool_rows`` uses of EnvPool, in Python over single environments of Gymnasium.

An asynchronous pool answers with environments in an order that changes from time to time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

pools: list[Pool] = []  # every one that was made


def list_all_envs() -> list[str]:
    return ["Acrobot-v1"]


def make_spec(task: str, num_threads: int = 0, max_episode_steps: int = 500) -> Any:
    env = gym.make(task)
    return SimpleNamespace(
        gymnasium_observation_space=env.observation_space,
        gymnasium_action_space=env.action_space,
        config=SimpleNamespace(max_episode_steps=max_episode_steps),
    )


def make_gymnasium(task: str, **kwargs: Any) -> Pool:
    pools.append(Pool(task, **kwargs))
    return pools[-1]


class Pool:
    def __init__(
        self, task: str, num_envs: int, batch_size: int, seed: list[int], num_threads: int, max_episode_steps: int = 500
    ) -> None:
        self.envs = [gym.make(task, max_episode_steps=max_episode_steps) for _ in range(num_envs)]
        self.batch_size, self.seeds, self.num_threads, self.closed = batch_size, seed, num_threads, False
        self.done: list[tuple[Any, ...]] = []
        self.ended = [True] * num_envs
        self.order = np.random.default_rng(0)

    def async_reset(self) -> None:
        for number, (env, seed) in enumerate(zip(self.envs, self.seeds, strict=True)):
            self._finish(number, env.reset(seed=seed)[0], 0.0, False, False)

    def send(self, actions: Any, env_id: Any) -> None:
        assert env_id.dtype == np.int32
        for action, number in zip(actions, env_id.tolist(), strict=True):
            if self.ended[number]:
                self._finish(number, self.envs[number].reset()[0], 0.0, False, False)
            else:
                self._finish(number, *self.envs[number].step(action)[:4])

    def recv(self) -> tuple[Any, ...]:
        assert len(self.done) >= self.batch_size, "a real pool would wait for ever"
        if self.batch_size < len(self.envs):
            self.order.shuffle(self.done)
        rows, self.done = self.done[: self.batch_size], self.done[self.batch_size :]
        numbers, seen, reward, terminated, truncated = (np.array(column) for column in zip(*rows, strict=True))
        info = {"env_id": numbers.astype(np.int32)}
        return seen, reward.astype(np.float32), terminated & ~truncated, truncated, info

    def close(self) -> None:
        self.closed = True

    def _finish(self, number: int, seen: Any, reward: Any, terminated: bool, truncated: bool) -> None:
        self.ended[number] = bool(terminated or truncated)
        self.done.append((number, seen, float(reward), terminated, truncated))
