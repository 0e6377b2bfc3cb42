"""Evaluations on the way of a run: which episodes they count, when they begin, and when they are given up."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from evaluated_weights import CONFIG, Round, Still, earlier, evaluate, make, measured, publish, published

from apexrl.agents import agent_class
from apexrl.config import ActorConfig, EnvConfig, EvaluatorConfig
from apexrl.envs import FrameStack, make_vector
from apexrl.envs.vector import Episode, Stepped
from apexrl.protocols import Acted
from apexrl.roles import Evaluator
from apexrl.roles.trial import Trial
from apexrl.shared.thread_seconds import Moment, ThreadSeconds
from apexrl.spec import Field

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

    def rest(self, which: Any) -> None:
        pass


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


class Drawn(gym.Env[Any, Any]):
    """An episode lasts a random number of steps; each is worth what is observed, which is random, too. Its end leaves
    no action."""

    made = 0  # steps of all

    def __init__(self, masked: bool = False) -> None:
        seen, self.action_space = gym.spaces.Box(0.0, 1.0, (4,)), gym.spaces.Discrete(2)
        mask = gym.spaces.MultiBinary(2)
        self._masked = masked
        self.observation_space: Any = gym.spaces.Dict(seen=seen, action_mask=mask) if masked else seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 50))
        return self._shown(self.np_random.random(4).astype(np.float32)), {}

    def step(self, action: Any) -> Any:
        Drawn.made += 1
        self._left -= 1
        seen = self.np_random.random(4).astype(np.float32)
        return self._shown(seen), float(seen[action]), self._left == 0, False, {}

    def _shown(self, seen: Any) -> Any:
        return {"seen": seen, "action_mask": np.full(2, self._left > 0, np.int8)} if self._masked else seen


@pytest.mark.parametrize(("masked", "noops"), [(False, 0), (True, 0), (False, 9)])
def test_environments_that_owe_no_episode_are_stepped_no_more(
    monkeypatch: pytest.MonkeyPatch, masked: bool, noops: int
) -> None:
    settings = EvaluatorConfig(eval_noops=noops)

    def played() -> tuple[list[float], list[int], int]:
        Drawn.made = 0
        env = make_vector(EnvConfig(env=Drawn, env_kwargs={"masked": masked}), 4, 0)
        agent = agent_class("dqn")(env.spec, CONFIG.agent, "cpu", 1)
        frames = FrameStack(1, 4, env.spec.observation)
        for seed in (3, 4):  # the second one has all of them again
            trial = Trial(agent, env, frames, 10, seed, gamma=0.99, settings=settings)
            while trial.step():
                pass
        env.close()
        return trial.returns, trial.compared()["lengths"], Drawn.made

    returns, lengths, made = played()
    monkeypatch.setattr("apexrl.envs.vector.VectorEnv.rest", lambda *_: None)
    assert (returns, lengths) == played()[:2]
    assert len(returns) == len(lengths) == 10
    assert sum(lengths) < made < Drawn.made


@pytest.mark.parametrize(
    ("serial", "updates", "newer", "given_up"),
    [(False, 1, True, True), (False, 0, True, False), (True, 1, True, False), (False, 1, False, False)],
)
def test_weights_that_have_learned_nothing_make_room_for_others(
    stage: Any, monkeypatch: pytest.MonkeyPatch, serial: bool, updates: int, newer: bool, given_up: bool
) -> None:
    monkeypatch.setattr("apexrl.roles.evaluator._UNTRAINED_SECONDS", 0.0)
    spec, weights = published(1)
    config = replace(CONFIG, serial=serial)
    evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
    assert evaluator.step()
    stage.run.totals.update(updates=updates, env_steps=1000)
    if newer:
        publish(weights, spec, 2, seed=9)
    evaluate(evaluator)
    stage.run.totals["env_steps"] += 60_000  # where cores are short, a rest follows
    evaluate(evaluator)
    versions = [values["version"] for values in stage.values("evaluation")]
    assert versions == ([] if given_up else [1]) + ([2] if newer else [])


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
    publish(weights, spec, 2, seed=9)
    assert not evaluator.step()  # too early: no time has passed
    stage.run.totals["env_steps"] += 1000
    evaluate(evaluator)
    assert [values["version"] for values in stage.values("evaluation")] == [1, 2]
    assert stage.values("evaluation")[1]["env_steps"] == 1000


@pytest.mark.parametrize(("serial", "rest"), [(False, 6), (True, 1)])
def test_an_evaluation_that_waited_for_a_core_is_followed_by_a_longer_rest(
    stage: Any, monkeypatch: pytest.MonkeyPatch, serial: bool, rest: int
) -> None:
    waited = [10.0]
    monkeypatch.setattr("apexrl.shared.thread_seconds.thread_seconds", lambda: ThreadSeconds(0.0, waited[0]))
    spec, weights = published(1)
    config = replace(CONFIG, serial=serial)
    evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
    assert evaluator.step()
    waited[0] += 6.0
    evaluate(evaluator)
    publish(weights, spec, 2, seed=9)
    seconds = 0
    while not evaluator.step():
        seconds += 1
        stage.run.totals["env_steps"] += 1000  # a second on the stage's clock
    assert seconds == rest


def test_a_trial_takes_more_than_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([Moment(10.0, 0.0, 3.0), Moment(11.0, 0.0, 4.5)])  # half a second too much in the queue
    monkeypatch.setattr("apexrl.roles.trial.moment", lambda: next(moments))
    with closing(make_vector(CONFIG.env, 2, 0)) as env:
        trial = Trial(Still(), env, FrameStack(1, 2, env.spec.observation), 2, 0)
        assert 0.0 < trial.seconds < 1e-6


@pytest.mark.parametrize("episodes", [1, 6])
def test_another_agent_plays_for_one_that_never_appears(episodes: int) -> None:
    kwargs = {"lengths": {"rare": 3, "short": 3}, "late": {"rare": 10**9}, "limit": 5}
    with closing(make_vector(EnvConfig(env="agent_toys:parallel_env", env_kwargs=kwargs), 2, 0)) as env:
        trial = Trial(Still(), env, FrameStack(1, 2, env.spec.observation), episodes, 0)
        steps = 0
        while trial.step():
            steps += 1
            assert steps < 700
    assert trial.returns == [0.0] * episodes
    assert steps > 500, "a hundred episodes without it"


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
    assert len(returns) == 6  # four on the way, and the final ones
    assert returns[4] == returns[5]  # all weights are the same: measured once
    assert len(set(returns)) >= 4  # short random episodes may well agree once


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
    earlier(evaluator, 100.0)
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


def test_environments_that_owe_no_episode_are_not_stepped() -> None:
    def played(envs: int) -> tuple[list[float], int]:
        Drawn.made = 0
        env = make_vector(EnvConfig(env=Drawn), envs, 0)
        trial = Trial(Still(), env, FrameStack(1, envs, env.spec.observation), 2, 3)  # type: ignore[arg-type]
        while trial.step():
            pass
        env.close()
        return trial.returns, Drawn.made

    assert played(4) == played(2)
