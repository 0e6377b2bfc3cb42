from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

MODULE = "apexrl.envs.memory_tasks"


def make(name: str, **kwargs: Any) -> Any:
    return gym.make(f"{MODULE}:{name}", disable_env_checker=True, **kwargs).unwrapped


def shown(**kwargs: Any) -> Any:
    return gym.make(f"{MODULE}:Shown-v0", disable_env_checker=True, **kwargs)


def play(env: Any, policy: Any, episodes: int = 40) -> list[float]:
    """Returns of a policy, which is called with the episode's observations so far."""
    returns = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        seen, total, over = [observation], 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy(seen))
            seen.append(observation)
            total, over = total + reward, terminated or truncated
        returns.append(total)
    return returns


def turn(seen: list[Any]) -> int:
    return int(seen[-1][1] and (2 if seen[0][0] > 0 else 1))


@pytest.mark.parametrize(
    ("name", "policy", "best"),
    [
        ("TMaze-v0", turn, 1.0),
        ("RepeatPrevious-v0", lambda seen: seen[-5] if len(seen) > 4 else 0, 1.0),
        ("Recall-v0", lambda seen: seen[0][:1], 5.0),
    ],
)
def test_who_remembers_gets_the_best_return(name: str, policy: Any, best: float) -> None:
    env = make(name)
    check_env(env, skip_render_check=True)
    assert play(env, policy) == pytest.approx([best] * 40)


def test_who_does_not_gets_the_return_of_the_table() -> None:
    assert np.mean(play(make("TMaze-v0"), lambda seen: int(seen[-1][1]), 400)) == pytest.approx(0.0, abs=0.15)
    assert np.mean(play(make("RepeatPrevious-v0"), lambda seen: 0)) == pytest.approx(-0.5, abs=0.06)
    now = play(make("Recall-v0"), lambda seen: seen[-1][:1], 400)  # 0 where nothing is shown
    assert np.mean(now) == pytest.approx(3.0, abs=0.15)


def test_errors_in_the_maze_cost_and_end_at_the_limit() -> None:
    env = make("TMaze-v0", length=3)
    assert play(env, lambda seen: 1, 1) == pytest.approx([-1.2])
    assert play(env, lambda seen: 0, 1) == pytest.approx([-0.9])


def test_velocities_are_left_out() -> None:
    env = shown(env="Pendulum-v1", first=2, g=9.0)
    assert env.observation_space.shape == (2,)
    assert env.unwrapped.g == 9.0
    whole, _ = gym.make("Pendulum-v1").reset(seed=3)
    np.testing.assert_array_equal(env.reset(seed=3)[0], whole[:2])
    with pytest.raises(ValueError, match="of which first=4 numbers cannot be taken"):
        shown(env="Pendulum-v1", first=4)
