"""Random actions until something is learned: from the first weights to the first update, whoever dies meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apexrl.agents import agent_class
from apexrl.config import ActorConfig, AgentConfig, Config, EnvConfig, LearnerConfig, ReplayConfig
from apexrl.envs import make_vector
from apexrl.replay import Replay
from apexrl.roles import Actor, Learner
from apexrl.roles.actor import step_fields
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import EnvSpec

CONFIG = Config(
    env=EnvConfig(env="apexrl.envs.toy:Corridor-v0"),
    agent=AgentConfig(agent="dqn", hidden=(4,), n_step=1),
    replay=ReplayConfig(capacity=500, min_size=8),
    actor=ActorConfig(actors=1, envs_per_actor=2, random_start=True, pull_period=1000),
    learner=LearnerConfig(batch_size=4, publish_period_updates=1),
)


class Stepped:
    """A run of one learner and one actor that are stepped by hand."""

    def __init__(self, stage: Any, config: Config = CONFIG) -> None:
        self._stage, self._config, self.weights = stage, config, InlineWeights()
        env = make_vector(config.env, 1, 0)
        env.close()
        self._spec: EnvSpec = env.spec
        agent = agent_class(config.agent.agent)(self._spec, config.agent, "cpu", 0)
        self.replay = Replay(
            kind="transition",
            fields=step_fields(self._spec, agent.step_spec),
            capacity=config.replay.capacity,
            min_size=config.replay.min_size,
            alpha=config.replay.alpha,
            writers=2,
            streams=4,
        )
        self.learner = self.new_learner()

    def new_learner(self) -> Learner:
        context, spec = self._stage.context("learner"), self._spec
        return Learner(context, config=self._config, spec=spec, replay=self.replay, weights=self.weights)

    def new_actor(self) -> tuple[Actor, list[float]]:
        """An actor, and the exploration of its first environment at every step that it makes from now on."""
        context, spec = self._stage.context("actor"), self._spec
        actor = Actor(context, config=self._config, spec=spec, replay=self.replay, weights=self.weights)
        explored: list[float] = []
        act = actor._agent.act

        def noted(seen: Any, state: Any, exploration: Any, greedy: bool = False) -> Any:
            explored.append(float(exploration[0]))
            return act(seen, state, exploration, greedy)

        actor._agent.act = noted  # type: ignore[method-assign]
        return actor, explored


def steps(actor: Actor, count: int) -> None:
    for _ in range(count):
        assert actor.step()


def test_random_ends_with_the_step_after_the_first_update(stage: Any) -> None:
    run = Stepped(stage)
    actor, explored = run.new_actor()
    steps(actor, 30)
    assert run.weights.version == 1
    assert run.learner.step()
    steps(actor, 2)
    assert explored[:30] == [np.inf] * 30
    assert explored[30:] == [pytest.approx(0.4)] * 2  # though the next look of a learned policy is 1000 steps away


def test_without_random_start_nothing_is_random_and_looks_keep_their_period(stage: Any) -> None:
    run = Stepped(stage, replace(CONFIG, actor=replace(CONFIG.actor, random_start=False)))
    actor, explored = run.new_actor()
    steps(actor, 30)
    assert run.learner.step()
    steps(actor, 2)
    assert explored == [pytest.approx(0.4)] * 32
    assert actor._weights.version == 1


def test_a_learner_that_dies_before_its_first_update_has_taught_nothing(stage: Any) -> None:
    run = Stepped(stage)
    actor, explored = run.new_actor()
    steps(actor, 5)
    before = run.learner._agent.weights()
    for _ in range(3):
        run.learner = run.new_learner()  # as after a kill: no checkpoint was written
    assert run.weights.version == 1
    for name, value in run.learner._agent.weights().items():
        np.testing.assert_array_equal(value, before[name])
    steps(actor, 5)
    assert explored == [np.inf] * 10
    steps(actor, 20)
    assert run.learner.step()
    assert run.weights.version == 2
    steps(actor, 1)
    assert explored[-1] == pytest.approx(0.4)


def test_a_late_actor_starts_where_the_run_is(stage: Any) -> None:
    run = Stepped(stage)
    first, _ = run.new_actor()
    steps(first, 30)
    early, explored = run.new_actor()
    steps(early, 2)
    assert explored == [np.inf] * 2
    early.close()
    assert run.learner.step()
    late, explored = run.new_actor()
    steps(late, 2)
    assert explored == [pytest.approx(0.4)] * 2


@pytest.mark.parametrize(("updates", "version"), [(0, 1), (3, 4)])
def test_a_resumed_run_is_random_only_if_it_has_learned_nothing(stage: Any, updates: int, version: int) -> None:
    run = Stepped(stage)
    actor, _ = run.new_actor()
    steps(actor, 30)
    for _ in range(updates):
        assert run.learner.step()
    actor.close()
    run.learner.close()  # writes a checkpoint
    run.weights = InlineWeights()  # other processes, a new board
    run.learner = run.new_learner()
    assert run.weights.version == version
    actor, explored = run.new_actor()
    steps(actor, 2)
    assert explored == [np.inf if updates == 0 else pytest.approx(0.4)] * 2
