"""The environments beside the suite, and the table of what was learned on them."""

from __future__ import annotations

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from benchmarks.generality import unseen
from benchmarks.generality.random_play import random_return

OWN = [one.env for one in unseen.UNSEEN.values() if one.env.startswith(unseen.OWN)]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of actions that are not within 1, which is the point
@pytest.mark.parametrize("env", OWN)
def test_own_environments_keep_gymnasiums_rules(env: str) -> None:
    check_env(gym.make(env, disable_env_checker=True).unwrapped, skip_render_check=True)


def test_rooms_need_the_key() -> None:
    env = gym.make(f"{unseen.OWN}Rooms-v0", disable_env_checker=True)
    seen, _ = env.reset(seed=1)
    ends, total = {0: -1, 1: 1}, 0.0
    for action in (1, None):  # the door first, which is locked; then the key and the door
        for _ in range(60):
            seen, reward, over, _, _ = env.step(ends[int(seen["key"])] if action is None else action)
            total += float(reward)
            assert not (over and action == 1)
            if over:
                break
    assert seen["key"] == 1
    assert total > 9.0
    assert random_return(f"{unseen.OWN}Chain-v0", 20) < 0.5


def test_the_table_has_what_was_learned_and_what_failed() -> None:
    ran = {"env": "Grid-v0", "failure": "", "agent": "ppo", "topology": "impala", "steps": 171_125,
           "best": 0.958, "last": 0.961, "random": 0.039}  # fmt: skip
    table = unseen.as_table([ran, {"env": "highway-fast-v0", "failure": "no"}]).splitlines()
    assert table[2] == "| `Grid-v0` | this page | `ppo`, `impala` | 0.75 | 171k | 0.04 | 0.96 | 0.96 | 0.95, " + (
        "a policy written by hand |"
    )
    assert table[3] == "| `highway-fast-v0` | highway-env |  | 3 |  | failed |  |  | 30, the greatest there is |"
