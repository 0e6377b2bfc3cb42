"""What a step waits is told from what it computes, and threads are chosen where steps wait."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import gymnasium as gym
import pytest

from apexrl.config import EnvConfig
from apexrl.envs import make_vector
from apexrl.envs.step_cost import StepCost, step_cost


class Simulator(gym.Env[Any, Any]):
    """Every step computes and waits so many seconds."""

    made = 0
    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(3)

    def __init__(self, computes: float = 0.0, waits: float = 0.0, fails: bool = False) -> None:
        type(self).made += 1
        self._computes, self._waits, self._fails = computes, waits, fails
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._fails:
            raise RuntimeError("broken")
        end = time.thread_time() + self._computes
        while time.thread_time() < end:
            pass
        if self._waits:
            time.sleep(self._waits)
        self._steps += 1
        return self.observation_space.sample(), 0.0, self._steps % 3 == 0, False, {}


@pytest.mark.parametrize(
    ("seconds", "waits", "wanted"),
    [(0.02, 0.97, True), (0.02, 0.5, True), (0.02, 0.3, False), (0.0005, 0.99, False), (5.0, 1.0, True)],
)
def test_threads_are_wanted_where_steps_are_long_and_mostly_wait(seconds: float, waits: float, wanted: bool) -> None:
    assert StepCost(seconds, waits).wants_threads == wanted


def test_waiting_is_told_from_computing_also_where_cores_are_short() -> None:
    waiting = step_cost(Simulator(waits=0.01), 1, nullcontext)
    assert waiting.seconds >= 0.01
    assert waiting.waits > 0.8
    computing = step_cost(Simulator(computes=0.01), 1, nullcontext)
    assert computing.seconds >= 0.01
    assert computing.waits < 0.4  # time in the queue for a core is no waiting


def test_threads_are_chosen_for_environments_that_wait() -> None:
    config = EnvConfig(env=Simulator, env_kwargs={"waits": 0.01})
    vector = make_vector(config, 3, 1, "auto")
    assert not vector.lockstep
    assert "of which it waits" in vector.chosen
    vector.reset()
    assert vector.step(vector.reset()["observation"][:, 0].astype("int64") * 0).observation["observation"].shape == (
        3,
        2,
    )
    vector.close()
    for count, how in ((1, "auto"), (3, "sync")):
        vector = make_vector(config, count, 1, how)  # type: ignore[arg-type]
        assert vector.lockstep
        assert vector.chosen == ""
        vector.close()


@pytest.mark.parametrize("kwargs", [{"computes": 0.01}, {}, {"fails": True}])
def test_others_are_stepped_one_after_the_other_and_made_once(kwargs: dict[str, Any]) -> None:
    Simulator.made = 0
    vector = make_vector(EnvConfig(env=Simulator, env_kwargs=kwargs), 3, 1, "auto")
    assert vector.lockstep
    assert Simulator.made == 3
    vector.close()
