from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from apexrl.agents import agent_class
from apexrl.config import ActorConfig, AgentConfig, Config, EnvConfig, EvaluatorConfig
from apexrl.envs import FrameStack, make_vector
from apexrl.envs.toy import Endless
from apexrl.envs.vector import Episode, Stepped
from apexrl.protocols import Acted
from apexrl.roles import Evaluator
from apexrl.roles.evaluator import Trial
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.shared.thread_seconds import ThreadSeconds
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import EnvSpec, Field

CONFIG = Config(
    agent=AgentConfig(hidden=(8,)),
    evaluator=EvaluatorConfig(eval_episodes=6, eval_envs=4, eval_period_seconds=1.0),
    env=EnvConfig(env="CartPole-v1"),
    serial=True,  # periods do not depend on how busy the machine is
)
FIELDS = {"observation": Field((1,), "float32")}


class Clockwork:
    """Environments whose episodes last a fixed number of steps, different in each: return = length."""

    spec = None

    def __init__(self, lengths: list[int]) -> None:
        self.num_envs = len(lengths)
        self._lengths = lengths
        self._at = [0] * len(lengths)
        self.steps = 0
        self.seeds: list[int | None] = []

    def reset(self, seed: int | None = None) -> dict[str, Any]:
        self.seeds.append(seed)
        self._at = [0] * self.num_envs
        return {"observation": np.zeros((self.num_envs, 1), np.float32)}

    def step(self, actions: Any) -> Stepped:
        self.steps += 1
        episodes = []
        for env, length in enumerate(self._lengths):
            self._at[env] += 1
            if self._at[env] == length:
                episodes.append(Episode(env, float(length), length))
                self._at[env] = 0
        no = np.zeros(self.num_envs, np.bool_)
        zeros = np.zeros(self.num_envs, np.float32)
        return Stepped({"observation": zeros[:, None]}, zeros, no, no, no, episodes)


class Still:
    """An agent that does nothing, greedily."""

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        assert greedy
        return Acted(np.zeros(len(exploration), np.int64), {}, state)


def trial(lengths: list[int], episodes: int) -> tuple[Trial, Clockwork]:
    env = Clockwork(lengths)
    return Trial(Still(), env, FrameStack(1, env.num_envs, FIELDS), episodes, seed=3), env  # type: ignore[arg-type]


class ReadOnly:
    """An agent whose state counts an episode's steps, in arrays that nobody may write into."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        steps = np.zeros(len(exploration), np.int64) if state is None else state["steps"]
        self.seen.append(steps.tolist())
        after = steps + 1
        after.flags.writeable = False
        return Acted(np.zeros(len(exploration), np.int64), {}, {"steps": after})


class Restarting(Clockwork):
    """Says which observations begin an episode: those after an end."""

    def step(self, actions: Any) -> Stepped:
        stepped = super().step(actions)
        return stepped._replace(starts=np.array([at == 0 for at in self._at]))


def test_a_state_that_is_read_only_is_zeroed_where_episodes_begin() -> None:
    agent, env = ReadOnly(), Restarting([2, 3])
    played = Trial(agent, env, FrameStack(1, 2, FIELDS), 4, seed=3)  # type: ignore[arg-type]
    while played.step():
        pass
    assert agent.seen == [[0, 0], [1, 1], [0, 2], [1, 0], [0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("lengths", "episodes", "expected"),
    [
        ([1, 10], 4, {1.0: 2, 10.0: 2}),
        ([1, 10], 5, {1.0: 3, 10.0: 2}),
        ([2, 3, 50], 2, {2.0: 1, 3.0: 1}),
        ([7], 3, {7.0: 3}),
    ],
)
def test_exactly_so_many_episodes_and_short_ones_are_not_favoured(
    lengths: list[int], episodes: int, expected: dict[float, int]
) -> None:
    played, env = trial(lengths, episodes)
    while played.step():
        pass
    assert Counter(played.returns) == expected
    assert env.steps == max(length * count for length, count in expected.items())


def published(*versions: int) -> tuple[EnvSpec, InlineWeights]:
    env = make_vector(CONFIG.env, 1, 0)
    env.close()
    weights = InlineWeights()
    for version in versions:
        weights.publish(agent_class("dqn")(env.spec, CONFIG.agent, "cpu", version).weights(), version)
    return env.spec, weights


def make(stage: Any, *versions: int) -> tuple[Evaluator, InlineWeights, EnvSpec]:
    spec, weights = published(*versions)
    return Evaluator(stage.context("evaluator"), config=CONFIG, spec=spec, weights=weights), weights, spec


def evaluate(evaluator: Evaluator) -> None:
    while evaluator.step():
        pass


def test_without_weights_there_is_nothing_to_do(stage: Any) -> None:
    evaluator, _, _ = make(stage)
    assert not evaluator.step()
    evaluator.close()
    assert stage.said == []


def test_an_evaluation_tells_what_it_measured(stage: Any) -> None:
    evaluator, _, _ = make(stage, 5)
    evaluate(evaluator)
    (values,) = stage.values("evaluation")
    assert len(values["returns"]) == values["episodes"] == 6
    assert values["mean"] == np.mean(values["returns"])
    assert values["std"] == np.std(values["returns"])
    assert (values["version"], values["final"]) == (5, False)
    assert stage.run.totals["evaluations"] == 1


def test_the_same_weights_are_measured_once_and_periods_are_kept(stage: Any) -> None:
    evaluator, weights, spec = make(stage, 1)
    evaluate(evaluator)
    assert not evaluator.step()
    weights.publish(agent_class("dqn")(spec, CONFIG.agent, "cpu", 9).weights(), 2)
    assert not evaluator.step()  # too early: no time has passed
    stage.run.totals["env_steps"] += 1000
    evaluate(evaluator)
    assert [values["version"] for values in stage.values("evaluation")] == [1, 2]
    assert stage.values("evaluation")[1]["env_steps"] == 1000


@pytest.mark.parametrize(("serial", "rest"), [(False, 6), (True, 1)])
def test_an_evaluation_that_waited_for_a_core_is_followed_by_a_longer_rest(
    stage: Any, monkeypatch: pytest.MonkeyPatch, serial: bool, rest: int
) -> None:
    waits = iter([10.0, 16.0, 16.0, 16.0])  # of the first evaluation six seconds, of the second none
    monkeypatch.setattr("apexrl.roles.evaluator.thread_seconds", lambda: ThreadSeconds(0.0, next(waits)))
    spec, weights = published(1)
    config = replace(CONFIG, serial=serial)
    evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
    evaluate(evaluator)
    weights.publish(agent_class("dqn")(spec, CONFIG.agent, "cpu", 9).weights(), 2)
    seconds = 0
    while not evaluator.step():
        seconds += 1
        stage.run.totals["env_steps"] += 1000  # a second on the stage's clock
    assert seconds == rest


def test_every_evaluation_has_fresh_seeds(stage: Any) -> None:
    evaluator, weights, _ = make(stage, 1)
    same = weights.latest()
    assert same is not None
    for version in range(2, 6):
        evaluate(evaluator)
        weights.publish(same[1], version)
        stage.run.totals["env_steps"] += 1000
    evaluator.close()
    returns = [tuple(values["returns"]) for values in stage.values("evaluation")]
    assert len(returns) == 7  # four on the way, the newest once more, and the final ones
    assert returns[5] == returns[6]  # all weights are the same: measured once
    assert len(set(returns)) >= 5  # short random episodes may well agree once


def test_the_best_is_kept_on_disk_and_measured_at_the_end(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, weights, spec = make(stage, 1)
    scores = [10.0, 30.0, 20.0, 5.0]
    monkeypatch.setattr(Trial, "mean", property(lambda self: scores[len(stage.said)]))
    monkeypatch.setattr(Trial, "step", lambda self: False)
    monkeypatch.setattr(Evaluator, "_send", lambda self, trial, candidate, weights="": stage.said.append((
        weights or "evaluation", candidate.version)))  # fmt: skip
    for version in (2, 3):
        evaluate(evaluator)
        weights.publish(agent_class("dqn")(spec, CONFIG.agent, "cpu", version).weights(), version)
        stage.run.totals["env_steps"] += 1000
    evaluate(evaluator)
    evaluator.close()
    assert stage.said == [("evaluation", 1), ("evaluation", 2), ("evaluation", 3), ("best", 2), ("last", 3)]
    folder = RunFolder(stage.context("x").folder).checkpoints
    path = checkpoint.best(folder)
    assert path is not None
    found = checkpoint.load(path)
    assert found.metadata["version"] == 2
    assert found.metadata["eval_return"] == 30.0


def test_weights_without_an_update_are_the_best_only_until_others_are_measured(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator, weights, spec = make(stage, 1)
    scores = [30.0, 10.0, 9.0, 10.0, 10.0]
    monkeypatch.setattr(Trial, "mean", property(lambda self: scores[len(stage.said)]))
    monkeypatch.setattr(Trial, "step", lambda self: False)
    monkeypatch.setattr(Evaluator, "_send", lambda self, trial, candidate, weights="": stage.said.append(
        (weights, candidate.version)))  # fmt: skip
    for version in (2, 3):
        evaluate(evaluator)
        weights.publish(agent_class("dqn")(spec, CONFIG.agent, "cpu", version).weights(), version)
        stage.run.totals["env_steps"] += 1000
        stage.run.totals["updates"] += 10
    evaluate(evaluator)
    evaluator.close()
    assert stage.said == [("", 1), ("", 2), ("", 3), ("best", 2), ("last", 3)]


def test_a_successor_remembers_the_best(stage: Any) -> None:
    evaluator, _, spec = make(stage, 4)
    evaluate(evaluator)
    best = stage.values("evaluation")[0]["mean"]
    successor = Evaluator(stage.context("evaluator"), config=CONFIG, spec=spec, weights=InlineWeights())
    successor.close()
    final = stage.values("evaluation")[-1]
    assert (final["final"], final["version"], final["episodes"]) == (True, 4, 6)
    assert successor._best_return == best


def test_a_hurried_stop_skips_the_final_evaluation(stage: Any) -> None:
    evaluator, _, _ = make(stage, 1)
    evaluate(evaluator)
    stage.run.stopping = stage.run.hurried = True
    evaluator.close()
    assert [values["final"] for values in stage.values("evaluation")] == [False]


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
        weights.publish(agent_class("dqn")(spec, CONFIG.agent, "cpu", version).weights(), version)
        stage.run.totals["env_steps"] += 1000
    evaluate(evaluator)
    if hurry:
        evaluator._send = lambda *_: setattr(stage.run, "hurried", True)  # type: ignore[method-assign]
    evaluator.close()
    return trials


def test_the_best_and_the_last_weights_are_measured_on_the_same_fresh_seeds(stage: Any) -> None:
    trials = measured(stage, CONFIG.evaluator, 3)
    *earlier, best, last = stage.values("evaluation")
    assert [values["version"] for values in earlier] == [1, 2, 3]
    assert [(values["final"], values["weights"], values["version"]) for values in (best, last)] == [
        (True, "best", 1),
        (True, "last", 3),
    ]
    assert trials.seeds[-1] == trials.seeds[-2]
    assert len(set(trials.seeds)) == 4
    assert all((trials.weights[-2][name] == array).all() for name, array in trials.weights[0].items())
    assert all((trials.weights[-1][name] == array).all() for name, array in trials.weights[2].items())


def test_where_the_best_weights_are_the_last_they_are_measured_once(stage: Any) -> None:
    trials = measured(stage, CONFIG.evaluator, 1)
    _, best, last = stage.values("evaluation")
    assert len(trials.seeds) == 2
    assert best["returns"] == last["returns"]
    assert (best["weights"], last["weights"], best["version"], last["version"]) == ("best", "last", 1, 1)


def test_haste_skips_the_last_weights(stage: Any) -> None:
    trials = measured(stage, CONFIG.evaluator, 2, hurry=True)
    assert len(trials.seeds) == 3  # two on the way, and the best


def test_a_final_evaluation_ends_at_its_time_limit(stage: Any) -> None:
    settings = replace(CONFIG.evaluator, eval_timeout=1e-9)
    measured(stage, settings, 2)
    assert stage.values("evaluation") == []
    assert all("an evaluation was given up" in values["text"] for values in stage.values("log"))


@pytest.mark.parametrize("looked", [True, False])
def test_weights_of_the_only_update_at_the_end_are_the_best(stage: Any, looked: bool) -> None:
    evaluator, weights, spec = make(stage, 1)
    if looked:
        evaluate(evaluator)
        evaluator._best_return = 1000.0  # of weights that have learned nothing
    else:
        evaluator.step()  # its only evaluation has yet to end
    measure = evaluator._measure

    def measured_while_the_learner_ends(*asked: Any) -> Any:
        if not stage.run.totals["updates"]:
            stage.run.totals["updates"] = 1
            weights.publish(agent_class("dqn")(spec, CONFIG.agent, "cpu", 2).weights(), 2)
        return measure(*asked)

    evaluator._measure = measured_while_the_learner_ends  # type: ignore[method-assign]
    evaluator.close()
    told = [(values.get("weights"), values["version"]) for values in stage.values("evaluation")]
    assert told == [(None, 1), (None, 2), ("best", 2), ("last", 2)][not looked :]
    path = checkpoint.best(evaluator._folder)
    assert path is not None
    assert checkpoint.load(path).metadata["version"] == 2


@pytest.mark.parametrize("better", [True, False])
def test_weights_of_the_last_update_are_judged_though_all_evaluations_have_ended(stage: Any, better: bool) -> None:
    evaluator, weights, spec = make(stage, 1)
    stage.run.totals["updates"] = 1
    evaluate(evaluator)
    evaluator._best_return = 0.0 if better else 1000.0
    measure = evaluator._measure

    def measured_while_the_learner_ends(*asked: Any) -> Any:
        if stage.run.totals["updates"] == 1:
            stage.run.totals["updates"] = 2
            weights.publish(agent_class("dqn")(spec, CONFIG.agent, "cpu", 2).weights(), 2)
        return measure(*asked)

    evaluator._measure = measured_while_the_learner_ends  # type: ignore[method-assign]
    evaluator.close()
    told = [(values.get("weights"), values["version"]) for values in stage.values("evaluation")]
    assert told == [(None, 1), (None, 2), ("best", 2 if better else 1), ("last", 2)]


@pytest.mark.timeout(60)
def test_where_no_episode_ends_the_final_evaluation_lasts_no_longer_than_the_run_did(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexrl.roles.evaluator._PATIENCE_SECONDS", 0.1)
    spec, weights = published(1)
    env = EnvConfig(env=Endless)  # without the time limit that it is registered with
    settings = replace(CONFIG.evaluator, eval_timeout=3600.0)
    config = replace(CONFIG, evaluator=settings, env=env)
    evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
    evaluator._agent = Still()  # type: ignore[assignment]
    evaluator._agent.load = lambda weights: None  # type: ignore[method-assign]
    assert evaluator.step()
    evaluator.close()
    assert stage.values("evaluation") == []
    (said,) = stage.values("log")
    assert "0 episodes ended" in said["text"]


class Round(gym.Env[Any, Any]):
    """Ends by action 1 alone, and has no time limit."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(4, np.float32), 1.0, bool(action), False, {}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("serial", "limit", "patience"), [(True, 0, 60.0), (False, 0, 0.0), (True, 300, 60.0)])
def test_a_policy_that_goes_in_circles_is_given_up_where_no_limit_is_known(
    stage: Any, monkeypatch: pytest.MonkeyPatch, serial: bool, limit: int, patience: float
) -> None:
    monkeypatch.setattr("apexrl.roles.evaluator._PATIENCE_STEPS", 100)
    monkeypatch.setattr("apexrl.roles.evaluator._PATIENCE_SECONDS", patience)
    spec, weights = published(1)
    env = EnvConfig(env=Round, max_episode_steps=limit)
    evaluator = Evaluator(
        stage.context("evaluator"), config=replace(CONFIG, env=env, serial=serial), spec=spec, weights=weights
    )
    evaluator._agent = Still()  # type: ignore[assignment]
    evaluator._agent.load = lambda weights: None  # type: ignore[method-assign]
    stage.run.totals.update(episodes=100, env_steps=2_000)  # episodes of training end after 20 steps
    assert evaluator.step()
    trial = evaluator._trial
    while evaluator._trial is not None:
        assert evaluator.step()
    assert trial is not None
    assert trial.steps == (2 * limit + 1 if limit else 200)  # two episodes with a reset between them; ten such ones
    assert len(stage.values("evaluation")) == bool(limit)
    said = [values["text"] for values in stage.values("log")]
    assert ["0 episodes ended" in text for text in said] == [True] * (not limit)
    evaluator.close()
    assert len(stage.values("evaluation")) == 3 * bool(limit)


def test_an_evaluation_without_an_end_warns_once_where_no_episode_of_the_run_has_ended(stage: Any) -> None:
    spec, weights = published(1)
    evaluator = Evaluator(stage.context("evaluator"), config=CONFIG, spec=spec, weights=weights)
    evaluator.step()
    assert evaluator._trial is not None
    evaluator._trial._began -= 100.0
    stage.run.totals["env_steps"] = 12_345
    evaluator.step()
    evaluator.step()
    (said,) = stage.values("log")
    assert "no episode has ended yet, in 12,345 steps" in said["text"]
    assert "--max-episode-steps" in said["text"]


def test_evaluations_with_a_seed_have_the_same_episodes_and_the_final_ones_others(stage: Any) -> None:
    settings = replace(CONFIG.evaluator, eval_seed=11)
    trials = measured(stage, settings, 3)
    assert len(set(trials.seeds[:3])) == 1
    assert trials.seeds[3] == trials.seeds[4] != trials.seeds[0]


@pytest.mark.parametrize("actions", ["greedy", "sampled"])
def test_actions_are_greedy_or_sampled(stage: Any, actions: Any) -> None:
    trials = measured(stage, replace(CONFIG.evaluator, eval_actions=actions), 1)
    assert trials.greedy == {actions == "greedy"}


def test_random_actions_reach_the_environments() -> None:
    env = make_vector(EnvConfig(env="apexrl.envs.toy:Corridor-v0"), 2, 0)
    executed: list[Any] = []
    step = env.step

    def stepped(actions: Any) -> Stepped:
        executed.append(actions)
        return step(actions)

    env.step = stepped  # type: ignore[method-assign]
    settings = EvaluatorConfig(eval_epsilon=1.0)
    played = Trial(Still(), env, FrameStack(1, 2, env.spec.observation), 6, 3, settings=settings)  # type: ignore[arg-type]
    while played.step():
        pass
    env.close()
    assert set(np.concatenate(executed).tolist()) == {0, 1}  # the agent always chooses 0


def test_environments_in_threads_are_measured_alike(make_stage: Any) -> None:
    """Every episode is played to its end by all environments together, so the figure does not depend on their pace."""
    measured = []
    for vector in ("sync", "threads"):
        stage = make_stage()
        config = replace(
            CONFIG,
            env=EnvConfig(env="apexrl.envs.toy:SlowCartPole-v0", env_kwargs={"seconds": 0.0}),
            actor=ActorConfig(vector=vector),  # type: ignore[arg-type]
        )
        spec, weights = published(3)
        evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
        evaluate(evaluator)
        evaluator.close()
        measured.append([values["returns"] for values in stage.values("evaluation")])
    assert measured[0] == measured[1]
    assert len(measured[0]) == 3
