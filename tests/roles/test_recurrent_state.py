"""Whoever lets an agent act gives it a state of zeros when an episode begins, and its own at every other step."""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np
import pytest
from state_checking_agent import Clock, Remembering

from apexrl.config import ActorConfig, AgentConfig, Config, EnvConfig, EvaluatorConfig, LearnerConfig, ReplayConfig
from apexrl.envs import make_vector
from apexrl.evaluation.loaded_agent import LoadedAgent
from apexrl.replay import Replay
from apexrl.roles import Actor, Evaluator, Learner
from apexrl.roles.actor import step_fields
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import EnvSpec

Vector = Literal["sync", "threads"]
LENGTH, BURN_IN = 3, 2


def config_for(vector: Vector) -> Config:
    return Config(
        env=EnvConfig(env=Clock),
        agent=AgentConfig(
            agent="state_checking_agent:Remembering",
            hidden=(4,),
            recurrent_units=3,
            sequence_length=LENGTH,
            sequence_stride=1,
            burn_in=BURN_IN,
        ),
        actor=ActorConfig(actors=1, envs_per_actor=4, pull_period=5, vector=vector),
        replay=ReplayConfig(min_size=1),
        learner=LearnerConfig(batch_size=32),
        evaluator=EvaluatorConfig(eval_episodes=9, eval_envs=4),
    )


def started(config: Config) -> tuple[EnvSpec, Remembering, InlineWeights]:
    env = make_vector(config.env, 1, 0)
    env.close()
    agent, weights = Remembering(env.spec, config.agent), InlineWeights()
    weights.publish(agent.weights(), 1)
    return env.spec, agent, weights


@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_an_actors_state(stage: Any, vector: Vector) -> None:
    config = config_for(vector)
    spec, agent, weights = started(config)
    fields = step_fields(spec, agent.step_spec)
    with Replay(500, fields, kind="sequence", length=LENGTH, stride=1, burn_in=BURN_IN, streams=4, writers=1) as replay:
        actor = Actor(stage.context("actor"), config=config, spec=spec, replay=replay, weights=weights)
        acting = actor._agent
        assert isinstance(acting, Remembering)
        for _ in range(200_000):
            assert actor.step()
            if acting.acted > 600:
                break
            time.sleep(1e-5)  # the environments' threads are at work
        actor.close()
        assert acting.wrong == 0
        assert 30 < acting.begun < 150
        data = replay.sample(500).data
    begins = data["first"][np.arange(500), data["mask"].argmax(axis=1)]
    zero = ~(data["lstm_h"].any(axis=1) | data["lstm_c"].any(axis=1))
    np.testing.assert_array_equal(begins, zero)
    assert 0 < begins.sum() < 500


@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_an_evaluators_state(stage: Any, vector: Vector) -> None:
    config = config_for(vector)
    spec, _, weights = started(config)
    evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
    while evaluator.step():
        pass
    evaluator.close()  # once more: every evaluation begins anew
    acting = evaluator._agent
    assert isinstance(acting, Remembering)
    assert acting.wrong == 0
    assert acting.begun >= 18


def test_a_loaded_agents_state() -> None:
    config = config_for("sync")
    spec, agent, _ = started(config)
    loaded, env = LoadedAgent(agent, spec), Clock()
    for _ in range(6):
        loaded.reset()
        seen, _ = env.reset()
        ended = False
        while not ended:
            seen, _, terminated, truncated, _ = env.step(loaded.act(seen))
            ended = terminated or truncated
    assert (agent.wrong, agent.begun) == (0, 6)
    assert agent.acted > 12


def test_the_policy_lag_is_that_of_steps_and_not_of_padding(stage: Any) -> None:
    """Padding carries version 0: it would look as old as the run."""
    config = config_for("sync")
    spec, agent, weights = started(config)
    weights.publish(agent.weights(), 1000)
    fields = step_fields(spec, agent.step_spec)
    with Replay(500, fields, kind="sequence", length=LENGTH, stride=1, burn_in=BURN_IN, streams=4, writers=1) as replay:
        actor = Actor(stage.context("actor"), config=config, spec=spec, replay=replay, weights=weights)
        for _ in range(100):
            actor.step()
        actor.close()
        learner = Learner(stage.context("learner"), config=config, spec=spec, replay=replay, weights=weights)
        for _ in range(5):
            assert learner.step()
        learner.close()
    mean, p95, most = stage.values("metrics")[-1]["run_lag"]
    assert mean == pytest.approx(3.0, rel=0.1)  # of 1 … 5, batches holding unequal numbers of steps
    assert (p95, most) == (5.0, 5.0)
