from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apexrl.agents import agent_class
from apexrl.agents.exploration import epsilon_ladder
from apexrl.config import ActorConfig, AgentConfig, Config, EnvConfig, ReplayConfig
from apexrl.envs import make_vector
from apexrl.errors import AgentError, WaitTimeout
from apexrl.roles import Actor
from apexrl.roles.actor import VERSION, step_fields
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import EnvSpec, Field

CONFIG = Config(
    agent=AgentConfig(hidden=(8,)), actor=ActorConfig(actors=3, envs_per_actor=2, pull_period=5), env=EnvConfig()
)


class Recorder:
    """A replay's writer that keeps what it is given, or refuses it."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.refuse = False
        self.streams = 0
        self.priority_fn: Any = None
        self.closed = False

    def writer(self, streams: int, priority_fn: Any) -> Recorder:
        self.streams, self.priority_fn = streams, priority_fn
        return self

    def append(self, steps: dict[str, Any], streams: Any = None, timeout: float = 10.0) -> None:
        if self.refuse:
            raise WaitTimeout("full")
        self.steps.append({name: np.array(value) for name, value in steps.items()})

    def close(self) -> None:
        self.closed = True


def weights_for(spec: EnvSpec) -> dict[str, Any]:
    return agent_class("dqn")(spec, CONFIG.agent, "cpu", 3).weights()


def spec_of(config: Config) -> EnvSpec:
    env = make_vector(config.env, 1, 0)
    env.close()
    return env.spec


def make(stage: Any, config: Config = CONFIG, index: int = 0) -> tuple[Actor, Recorder, InlineWeights, EnvSpec]:
    spec, replay, weights = spec_of(config), Recorder(), InlineWeights()
    actor = Actor(stage.context("actor", index), config=config, spec=spec, replay=replay, weights=weights)  # type: ignore[arg-type]
    return actor, replay, weights, spec


def test_it_waits_for_the_first_weights(stage: Any) -> None:
    actor, replay, weights, spec = make(stage)
    assert not actor.step()
    assert replay.steps == []
    weights.publish(weights_for(spec), 7)
    assert actor.step()
    assert len(replay.steps) == 1


def test_a_step_holds_an_observation_its_action_and_its_results(stage: Any) -> None:
    actor, replay, weights, spec = make(stage)
    weights.publish(weights_for(spec), 1)
    for _ in range(60):
        assert actor.step()
    fields = step_fields(spec, {"q": agent_class("dqn")(spec, CONFIG.agent, "cpu", 0).step_spec["q"]})
    for steps in replay.steps:
        assert set(steps) == {*fields, "reward", "terminated", "truncated"}
        for name, field in fields.items():
            assert steps[name].shape == (2, *field.shape)
            assert steps[name].dtype == field.dtype
    ends = np.stack([steps["terminated"] for steps in replay.steps])
    rewards = np.stack([steps["reward"] for steps in replay.steps])
    assert ends[:-1].any()
    # CartPole pays 1 for every step; the step after an end is the final observation, whose results are none.
    np.testing.assert_array_equal(rewards[1:], 1.0 - ends[:-1])
    assert replay.streams == 2
    assert stage.run.totals["env_steps"] == int(rewards.sum())


def test_final_observations_follow_their_episode_and_resets_follow_them(stage: Any) -> None:
    actor, replay, weights, spec = make(stage)
    weights.publish(weights_for(spec), 1)
    for _ in range(60):
        actor.step()
    observations = np.stack([steps["observation"] for steps in replay.steps])
    ends = np.stack([steps["terminated"] for steps in replay.steps])
    for t, env in zip(*np.nonzero(ends[:-2]), strict=True):
        assert np.abs(observations[t + 1, env, 2]) > 0.2 or np.abs(observations[t + 1, env, 0]) > 2.3  # fallen
        assert np.abs(observations[t + 2, env]).max() <= 0.05  # CartPole begins within ±0.05


def test_versions_are_stamped_and_pulled_by_period(stage: Any) -> None:
    actor, replay, weights, spec = make(stage)
    arrays = weights_for(spec)
    weights.publish(arrays, 1)
    for turn in range(12):
        if turn == 3:
            weights.publish(arrays, 20)
            weights.publish(arrays, 30)
        actor.step()
    stamped = [steps[VERSION].tolist() for steps in replay.steps]
    assert stamped == [[1, 1]] * 5 + [[30, 30]] * 7


def test_a_refused_step_is_offered_again_and_nothing_is_acted_meanwhile(stage: Any) -> None:
    actor, replay, weights, spec = make(stage)
    weights.publish(weights_for(spec), 1)
    actor.step()
    replay.refuse = True
    assert not actor.step()
    taken = stage.run.totals["env_steps"]
    assert not actor.step()
    assert stage.run.totals["env_steps"] == taken
    replay.refuse = False
    assert actor.step()
    assert stage.run.totals["env_steps"] == taken
    assert len(replay.steps) == 2


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_priorities_are_computed_only_where_draws_depend_on_them(stage: Any, alpha: float) -> None:
    actor, replay, _, _ = make(stage, replace(CONFIG, replay=ReplayConfig(alpha=alpha)))
    assert replay.priority_fn == (actor._agent.priorities if alpha else None)


def test_each_slot_has_its_own_rungs_of_the_ladder(stage: Any) -> None:
    seen = [make(stage, index=index)[0]._player._exploration() for index in range(3)]
    ladder = epsilon_ladder(6, 0.4, 7.0)
    np.testing.assert_array_equal(np.stack(seen), ladder[[[0, 3], [2, 5], [1, 4]]])


def test_slots_that_nobody_has_taken_keep_their_rungs(stage: Any) -> None:
    config = replace(CONFIG, actor=replace(CONFIG.actor, actor_slots=8))
    ladder = epsilon_ladder(16, 0.4, 7.0)
    np.testing.assert_array_equal(make(stage, config, index=1)[0]._player._exploration(), ladder[[4, 12]])


def test_finished_episodes_are_reported_with_return_and_length(stage: Any) -> None:
    actor, replay, weights, spec = make(stage)
    weights.publish(weights_for(spec), 1)
    for _ in range(80):
        actor.step()
    actor.close()
    messages = stage.values("episodes")
    returns = [value for values in messages for value in values["returns"]]
    lengths = [value for values in messages for value in values["lengths"]]
    assert returns == lengths
    assert len(returns) == stage.run.totals["episodes"] > 2
    ends = np.stack([steps["terminated"] for steps in replay.steps]).sum()
    assert len(returns) == ends
    assert replay.closed


def test_stacked_frames_are_seen_but_stored_once(stage: Any) -> None:
    config = replace(CONFIG, env=EnvConfig(env="apexrl.envs.toy:Catch-v0", stack=3))
    actor, replay, weights, spec = make(stage, config)
    assert actor._player.seen["observation"].shape[:2] == (2, 3)
    weights.publish(weights_for(spec), 1)
    actor.step()
    assert replay.steps[0]["observation"].shape == (2, *spec.observation["observation"].shape)


@pytest.mark.parametrize("name", ["action", "reward", "version", "observation"])
def test_an_agent_may_not_record_under_a_name_that_is_taken(name: str) -> None:
    with pytest.raises(AgentError, match=f"step_spec names {name}"):
        step_fields(spec_of(CONFIG), {name: Field((), "float32")})


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_decides_everything(seed: int, make_stage: Any) -> None:
    runs = []
    for _ in range(2):
        stage = make_stage()
        spec, replay, weights = spec_of(CONFIG), Recorder(), InlineWeights()
        actor = Actor(stage.context("actor", seed=seed), config=CONFIG, spec=spec, replay=replay, weights=weights)  # type: ignore[arg-type]
        weights.publish(weights_for(spec), 1)
        for _ in range(20):
            actor.step()
        runs.append(replay.steps)
    for one, two in zip(*runs, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])
