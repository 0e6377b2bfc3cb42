"""Goals in hindsight, put into batches: against a plain recomputation from the steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexrl.replay import Field, Replay
from apexrl.roles.goal_relabelling import GoalRelabelling

GAMMA = 0.9
SHAPE = {"observation": (2,), "observation/achieved_goal": (1,), "observation/desired_goal": (1,), "action": ()}
FIELDS = {name: Field(shape, "float32") for name, shape in SHAPE.items()}


class Near:
    """Reward 0 within 1 of the goal, else minus the distance; such a step ends the episode, if anything says so."""

    def __init__(self, tells):
        self.tells = tells

    def rewards(self, achieved, desired):
        distance = np.abs(achieved - desired)[:, 0]
        return np.where(distance <= 1, 0.0, -distance).astype(np.float32)

    def terminated(self, achieved, desired):
        return np.abs(achieved - desired)[:, 0] <= 1 if self.tells else None


@settings(max_examples=20, deadline=None)
@given(
    n_step=st.integers(1, 5),
    stack=st.integers(1, 3),
    tells=st.booleans(),
    strategy=st.sampled_from(["future", "final", "episode"]),
    seed=st.integers(0, 2**16),
)
def test_returns_are_those_of_the_steps_under_the_new_goal(n_step, stack, tells, strategy, seed):
    rng, near = np.random.default_rng(seed), Near(tells)
    achieved = rng.integers(0, 6, 200).astype(np.float32)
    ends = rng.random(200) < 0.15
    terminates = ends & (rng.random(200) < 0.5)
    with Replay(
        1000, FIELDS, kind="transition", n_step=n_step, stack=stack, gamma=GAMMA, streams=1, hindsight=strategy,
        hindsight_share=0.7, seed=seed,
    ) as replay:  # fmt: skip
        writer = replay.writer(streams=1)
        final = np.zeros(200, bool)
        for t in range(1, 200):  # a final observation ends no episode
            final[t] = ends[t - 1] and not final[t - 1]
        for t in range(200):
            writer.append(
                {
                    "observation": np.array([[t, 0]], "f4"),
                    "observation/achieved_goal": achieved[t].reshape(1, 1),
                    "observation/desired_goal": np.full((1, 1), 100.0, "f4"),
                    "action": np.zeros(1, "f4"),
                    "reward": np.array([-7.0], "f4"),
                    "terminated": np.array([terminates[t] and not final[t]]),
                    "truncated": np.array([ends[t] and not terminates[t] and not final[t]]),
                }
            )
        writer.flush()
        batch = replay.sample(128)
    data, before = batch.data, {name: values.copy() for name, values in batch.data.items()}
    GoalRelabelling(near, GAMMA)(batch)
    assert not any(name.startswith("hindsight/") for name in data)
    for i, chosen in enumerate(before["hindsight/relabelled"]):
        if not chosen:
            assert all((data[name][i] == before[name][i]).all() for name in data)
            continue
        goal = before["hindsight/goal"][i]
        t = int(before["observation"][i].reshape(stack, 2)[-1, 0])
        value, discount = 0.0, 1.0
        for k in range(n_step):
            value += discount * near.rewards(achieved[t + k + 1].reshape(1, 1), goal[None])[0]
            reached = bool(near.terminated(achieved[t + k + 1].reshape(1, 1), goal[None])[0]) if tells else None
            discount *= GAMMA
            if reached or (reached is None and terminates[t + k]):
                discount = 0.0
            if discount == 0.0 or ends[t + k]:
                break
        assert data["reward"][i] == pytest.approx(value, rel=1e-5, abs=1e-6)
        assert data["discount"][i] == pytest.approx(discount, rel=1e-6)
        for name in ("observation/desired_goal", "next_observation/desired_goal"):
            assert (data[name][i] == goal).all()
        assert (data["observation/achieved_goal"][i] == before["observation/achieved_goal"][i]).all()


def test_arrays_of_others_are_copied():
    goal = np.ones((2, 1), np.float32)
    data = {
        "observation/desired_goal": np.zeros((2, 1), np.float32),
        "next_observation/desired_goal": np.zeros((2, 1), np.float32),
        "reward": np.zeros(2, np.float32),
        "discount": np.full(2, GAMMA, np.float32),
        "hindsight/relabelled": np.array([True, False]),
        "hindsight/goal": goal,
        "hindsight/achieved": np.full((2, 1, 1), 9.0, np.float32),
        "hindsight/steps": np.ones(2, np.int32),
    }
    for array in data.values():
        array.flags.writeable = False

    class Batch:
        pass

    batch = Batch()
    batch.data = data
    GoalRelabelling(Near(False), GAMMA)(batch)
    assert data["observation/desired_goal"].tolist() == [[1.0], [0.0]]
    assert data["reward"].tolist() == [-8.0, 0.0]
