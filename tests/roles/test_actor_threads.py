"""The actor whose environments take their own time: what it writes is what it writes in lock-step."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from decision_trace import Numbered, Teller

from apexrl.agents import agent_class
from apexrl.config import ActorConfig, AgentConfig, Config, EnvConfig
from apexrl.envs import make_vector
from apexrl.errors import EnvError, WaitTimeout
from apexrl.replay import Replay
from apexrl.roles import Actor
from apexrl.roles.actor import VERSION, step_fields
from apexrl.shared.weights_board import InlineWeights

ENVS = 4


def numbered_together(num_envs: int, mode: str = "NextStep") -> gym.vector.VectorEnv[Any, Any, Any]:
    numbers = itertools.count()
    return gym.vector.SyncVectorEnv([lambda: Numbered(numbers)] * num_envs, autoreset_mode=mode)


def config_for(vector: Any, stack: int = 1) -> Config:
    """``vector``: as in ``ActorConfig``, or the autoreset mode of an environment that is vectorised by itself."""
    env: dict[str, Any] = {"env": Numbered, "env_kwargs": {"numbers": itertools.count(), "slowest": 0.001}}
    if vector not in ("sync", "threads"):
        env, vector = {"env": numbered_together, "env_kwargs": {"mode": vector}}, "sync"
    return Config(
        agent=AgentConfig(hidden=(8,)),
        actor=ActorConfig(actors=1, envs_per_actor=ENVS, pull_period=5, vector=vector),
        env=EnvConfig(**env, stack=stack),
    )


class Recorder:
    """A replay's writer that keeps every stream's rows, and refuses as often as it is told to."""

    def __init__(self) -> None:
        self.rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.refusals = 0
        self.offered: list[Any] = []

    def writer(self, streams: int, priority_fn: Any) -> Recorder:
        return self

    def append(self, steps: dict[str, Any], streams: Any = None, timeout: float = 10.0) -> None:
        if self.refusals:
            self.refusals -= 1
            self.offered.append((steps, streams))
            raise WaitTimeout("full")
        for row, stream in enumerate(range(ENVS) if streams is None else streams):
            self.rows[stream].append({name: np.array(value[row]) for name, value in steps.items()})

    def close(self) -> None: ...


def make(stage: Any, monkeypatch: pytest.MonkeyPatch, vector: str, stack: int = 1) -> tuple[Actor, Any, Teller, Any]:
    agent, recorder, weights = Teller(steady=True), Recorder(), InlineWeights()
    monkeypatch.setattr("apexrl.agents.agent_class", lambda name: lambda *args: agent)
    config = config_for(vector, stack)
    env = make_vector(replace(config.env, env_kwargs={}), 1, 0)
    env.close()
    context = stage.context("actor")
    context.patience = 1.0
    actor = Actor(context, config=config, spec=env.spec, replay=recorder, weights=weights)  # type: ignore[arg-type]
    weights.publish({"w": np.array([1.0], np.float32)}, 1)
    return actor, recorder, agent, weights


def run(actor: Actor, recorder: Recorder, rows: int) -> None:
    while any(len(recorder.rows[stream]) < rows for stream in range(ENVS)):
        actor.step()


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("other", ["threads", "NextStep", "SameStep", "Disabled"])
def test_every_stream_gets_the_rows_of_lock_step(
    other: str, stack: int, make_stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = {}
    for vector in ("sync", other):
        stage = make_stage()
        actor, recorder, agent, _ = make(stage, monkeypatch, vector, stack)
        run(actor, recorder, 60)
        actor.close()
        assert (set(agent.batches) == {ENVS}) == (vector in ("sync", "NextStep"))
        written[vector] = recorder.rows
        reported = stage.values("episodes")
        assert sum(len(values["returns"]) for values in reported) == stage.run.totals["episodes"]
    for stream in range(ENVS):
        for one, two in zip(written["sync"][stream][:60], written[other][stream][:60], strict=True):
            assert one.keys() == two.keys()
            for name in one:
                if name != VERSION:
                    np.testing.assert_array_equal(one[name], two[name], err_msg=name)
                assert one[name].dtype == two[name].dtype


def test_a_row_says_where_it_is_of_and_counts_what_was_decided_there(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, recorder, _, _ = make(stage, monkeypatch, "threads")
    run(actor, recorder, 50)
    steps = 0
    for stream, rows in recorder.rows.items():
        told = np.array([row["told"] for row in rows])
        # the state is zero where an episode begins
        assert told.tolist() == [stream * 1_000_000 + int(row["observation"][2]) for row in rows]
        assert {int(row["observation"][0]) for row in rows} == {stream}
        assert {float(row["explored"]) for row in rows} == {float(actor._player._exploration()[stream])}
        final = [bool(row["terminated"] or row["truncated"]) for row in rows]
        for before, (row, after) in zip([False, *final], itertools.pairwise(rows), strict=False):
            here, there = row["observation"], after["observation"]
            if before:  # the final observation's own row: action ignored, no reward; the next episode begins after it
                assert row["reward"] == 0.0
                assert there.tolist() == [stream, here[1] + 1, 0]
            else:
                assert row["reward"] == 100.0 * stream + there[2] + 0.125 * row["action"]
                assert there.tolist() == [stream, here[1], here[2] + 1]
        steps += sum(not ended for ended in [False, *final[:-1]])
    assert stage.run.totals["env_steps"] == steps
    actor.close()


def test_a_refused_step_is_offered_again_unchanged(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, recorder, _, _ = make(stage, monkeypatch, "threads")
    run(actor, recorder, 5)
    recorder.refusals = 3
    while recorder.refusals:
        actor.step()
    first, *others = recorder.offered
    for steps, streams in others:
        assert streams == first[1]
        for name in steps:
            np.testing.assert_array_equal(steps[name], first[0][name])
    run(actor, recorder, 40)
    for stream, rows in recorder.rows.items():
        told = [int(row["told"]) for row in rows]
        assert told == [stream * 1_000_000 + int(row["observation"][2]) for row in rows]
    actor.close()


def test_weights_are_pulled_by_period_whoever_was_ready(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, recorder, agent, weights = make(stage, monkeypatch, "threads")
    actor.step()
    assert agent.version == 1
    weights.publish({"w": np.array([9.0], np.float32)}, 9)
    while agent.version == 1:
        actor.step()
    rows = sum(len(rows) for rows in recorder.rows.values())
    # the period may be over in the midst of the environments, and the step that looks writes rows of its own
    assert 5 * ENVS <= rows < 7 * ENVS
    run(actor, recorder, 30)
    for mine in recorder.rows.values():
        versions = [int(row[VERSION]) for row in mine]
        assert versions == sorted(versions)
        assert set(versions) == {1, 9}
    actor.close()


def test_an_environment_that_fails_ends_the_actor_by_its_number(stage: Any) -> None:
    config = replace(
        config_for("threads"),
        env=EnvConfig(env="apexrl.envs.faulty:Raises-v0", env_kwargs={"at_step": 20}),
    )
    env = make_vector(config.env, 1, 0)
    env.close()
    weights = InlineWeights()
    weights.publish(agent_class("dqn")(env.spec, config.agent, "cpu", 3).weights(), 1)
    actor = Actor(stage.context("actor"), config=config, spec=env.spec, replay=Recorder(), weights=weights)  # type: ignore[arg-type]
    with pytest.raises(EnvError, match=r"step\(\) of environment \d raised RuntimeError: the simulator broke"):
        while True:
            actor.step()
    actor.close()


@pytest.mark.parametrize("stack", [1, 3])
def test_what_is_sampled_is_of_one_environment_and_one_episode(
    stack: int, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for("threads", stack)
    agent = Teller(steady=True)
    monkeypatch.setattr("apexrl.agents.agent_class", lambda name: lambda *args: agent)
    env = make_vector(replace(config.env, env_kwargs={}), 1, 0)
    env.close()
    n = 3
    with Replay(
        kind="transition",
        fields=step_fields(env.spec, agent.step_spec),
        capacity=4000,
        stack=stack,
        n_step=n,
        gamma=0.5,
        writers=1,
        streams=ENVS,
    ) as replay:
        weights = InlineWeights()
        weights.publish({"w": np.array([1.0], np.float32)}, 1)
        context = stage.context("actor")
        context.patience = 1.0
        actor = Actor(context, config=config, spec=env.spec, replay=replay, weights=weights)
        while stage.run.totals["env_steps"] < 1500:
            actor.step()
        actor.close()
        batch = replay.sample(1024)
        now = batch.data["observation"].reshape(1024, stack, 3)
        later = batch.data["next_observation"].reshape(1024, stack, 3)
        number, episode, t = now[:, -1].T
        assert set(number) == set(range(ENVS))
        np.testing.assert_array_equal(batch.data["told"] // 1_000_000, number)
        m = later[:, -1, 2] - t  # steps until the later observation, fewer than n at an episode's end
        assert set(m.tolist()) == {1.0, 2.0, 3.0}
        for window in (now, later):
            np.testing.assert_array_equal(window[:, :, 0], np.repeat(number[:, None], stack, 1))
            np.testing.assert_array_equal(window[:, :, 1], np.repeat(episode[:, None], stack, 1))
            back = np.arange(stack)[::-1]
            np.testing.assert_array_equal(window[:, :, 2], np.maximum(window[:, -1:, 2] - back, 0))
        length = 2 + (number + episode) % 6
        np.testing.assert_array_equal(m, np.minimum(n, length - t))
        ended = (t + m == length) & (episode % 2 == 1)
        np.testing.assert_allclose(batch.data["discount"], np.where(ended, 0.0, 0.5**m))
        expected = np.zeros(1024)
        for k in range(n):
            action = (number * 1.0 + episode * 3.0 + (t + k) * 7.0).astype(np.int64) % 4
            expected += np.where(k < m, 0.5**k * (100.0 * number + t + k + 1 + 0.125 * action), 0.0)
        np.testing.assert_allclose(batch.data["reward"], expected, rtol=1e-6)
