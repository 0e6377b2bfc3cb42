from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.config import EnvConfig
from apexrl.envs import make_vector
from apexrl.envs.atari import LifeLossEnds
from apexrl.envs.lockstep import LoopRows
from apexrl.envs.vector import VectorEnv


class Game(gym.Env[np.ndarray, np.int64]):
    """Two lives of three steps each; every step pays 1."""

    observation_space = gym.spaces.Box(0, 255, (), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.frame, self.games = 0, 0
        self.ale = SimpleNamespace(lives=lambda: 2 - self.frame // 3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.frame, self.games = 0, self.games + 1
        return np.uint8(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.frame += 1
        return np.uint8(self.frame), 1.0, self.frame == 6, False, {}


def test_a_lost_life_ends_the_learners_episode_but_not_the_game() -> None:
    game = Game()
    env = VectorEnv(LoopRows([LifeLossEnds(game)], "Game"), "Game")
    env.reset()
    rows = [env.step(np.array([0])) for _ in range(9)]
    frames = [int(row.observation["observation"][0]) for row in rows]
    assert frames == [1, 2, 3, 3, 4, 5, 6, 0, 1]  # after a lost life the same frame again: nothing is skipped
    assert [bool(row.terminated[0]) for row in rows] == [False, False, True, False, False, False, True, False, False]
    assert [float(row.reward[0]) for row in rows] == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    episodes = [episode for row in rows for episode in row.episodes]
    assert [(episode.episode_return, episode.length) for episode in episodes] == [(6.0, 6)]
    assert game.games == 2


def test_a_seeded_reset_starts_the_game_anew_even_after_a_lost_life() -> None:
    env = LifeLossEnds(Game())
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    assert env.reset(seed=1)[0] == 0


def test_pong_and_breakout_through_the_pipeline() -> None:
    env = make_vector(EnvConfig(env="ALE/Pong-v5", atari=True, stack=4, reward_clip=1.0), 2, 0)
    assert env.spec.observation["observation"].shape == (84, 84)
    assert env.spec.observation["observation"].dtype == "uint8"
    assert env.spec.action.n == 6
    env.reset()
    rewards = [env.step(np.zeros(2, np.int64)).reward for _ in range(120)]
    assert {float(value) for reward in rewards for value in reward} == {-1.0, 0.0}
    env.close()

    env = make_vector(EnvConfig(env="ALE/Breakout-v5", atari=True), 1, 0)
    env.reset()
    lost, finished = 0, []
    for step in range(600):
        stepped = env.step(np.array([1 if step % 8 == 0 else 3]))  # fire, then run right
        lost += int(stepped.terminated[0])
        finished += stepped.episodes
    assert lost == 5 * len(finished) + lost % 5
    assert finished
    env.close()


def test_lost_lives_may_end_nothing() -> None:
    env = make_vector(EnvConfig(env="ALE/Breakout-v5", atari=True, life_loss_ends=False), 1, 0)
    env.reset()
    ended, finished = 0, []
    while not finished:
        stepped = env.step(np.array([1]))
        ended += int(stepped.terminated[0])
        finished += stepped.episodes
    assert ended == 1
    env.close()


def test_a_game_that_stands_still_has_a_time_limit() -> None:
    """Breakout waits for FIRE; the emulator ends it after 108,000 frames."""
    assert gym.spec("ALE/Breakout-v5").kwargs["max_num_frames_per_episode"] == 108_000
    config = EnvConfig(env="ALE/Breakout-v5", atari=True, env_kwargs={"max_num_frames_per_episode": 400})
    env = make_vector(config, 1, 0)
    env.reset()
    lengths = [episode.length for _ in range(101) for episode in env.step(np.array([0])).episodes]
    assert len(lengths) == 1
    env.close()
