"""Evaluators of a small run, with weights that a test publishes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.agents import agent_class
from apexrl.config import AgentConfig, Config, EnvConfig, EvaluatorConfig
from apexrl.envs import make_vector
from apexrl.protocols import Acted
from apexrl.roles import Evaluator
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import EnvSpec

CONFIG = Config(
    agent=AgentConfig(hidden=(8,)),
    evaluator=EvaluatorConfig(eval_episodes=6, eval_envs=4, eval_period_seconds=1.0),
    env=EnvConfig(env="CartPole-v1"),
    serial=True,  # periods do not depend on how busy the machine is
)


class Still:
    """An agent that does nothing, greedily."""

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        assert greedy
        return Acted(np.zeros(len(exploration), np.int64), {}, state)


class Round(gym.Env[Any, Any]):
    """Ends by action 1 alone, and has no time limit."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(4, np.float32), 1.0, bool(action), False, {}


def publish(weights: InlineWeights, spec: EnvSpec, version: int, seed: int | None = None) -> None:
    """Weights of an agent with this seed, by default the version."""
    weights.publish(agent_class("dqn")(spec, CONFIG.agent, "cpu", seed or version).weights(), version)


def published(*versions: int) -> tuple[EnvSpec, InlineWeights]:
    env = make_vector(CONFIG.env, 1, 0)
    env.close()
    weights = InlineWeights()
    for version in versions:
        publish(weights, env.spec, version)
    return env.spec, weights


def make(stage: Any, *versions: int) -> tuple[Evaluator, InlineWeights, EnvSpec]:
    spec, weights = published(*versions)
    return Evaluator(stage.context("evaluator"), config=CONFIG, spec=spec, weights=weights), weights, spec


def evaluate(evaluator: Evaluator) -> None:
    while evaluator.step():
        pass


class Trials:
    """Records the seed and the weights of every trial of an evaluator, and the greedy flag of its agent's calls."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.seeds: list[int] = []
        self.weights: list[Any] = []
        self.greedy: set[bool] = set()
        load, act, reset = evaluator._agent.load, evaluator._agent.act, evaluator._env.reset

        def loaded(weights: Any) -> None:
            self._newest = weights
            load(weights)

        def acted(seen: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
            self.greedy.add(greedy)
            return act(seen, state, exploration, greedy)

        def begun(seed: int) -> Any:
            self.seeds.append(seed)
            self.weights.append(self._newest)
            return reset(seed)

        evaluator._agent.load, evaluator._agent.act = loaded, acted  # type: ignore[method-assign]
        evaluator._env.reset = begun  # type: ignore[method-assign, assignment]


def measured(stage: Any, settings: EvaluatorConfig, versions: int, hurry: bool = False) -> Trials:
    """A run of ``versions`` weights, of which the first are better than the others, to its end."""
    spec, weights = published(1)
    evaluator = Evaluator(stage.context("evaluator"), config=replace(CONFIG, evaluator=settings), spec=spec,
                          weights=weights)  # fmt: skip
    trials = Trials(evaluator)
    for version in range(2, versions + 1):
        evaluate(evaluator)
        evaluator._best_return = 1000.0
        publish(weights, spec, version)
        stage.run.totals["env_steps"] += 1000
    evaluate(evaluator)
    if hurry:
        evaluator._send = lambda *_: setattr(stage.run, "hurried", True)  # type: ignore[method-assign]
    evaluator.close()
    return trials


def earlier(evaluator: Evaluator, seconds: float) -> None:
    """As if the trial under way had begun so many seconds earlier."""
    trial = evaluator._trial
    assert trial is not None
    trial._began = trial._began._replace(clock=trial._began.clock - seconds)
