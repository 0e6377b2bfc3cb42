"""Batches of as many unrolls as wait, and one model that several threads act with and change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from apexrl.agents import with_agent
from apexrl.agents.actor_critic import ActorCritic
from apexrl.agents.horizon import horizon
from apexrl.agents.named_vectors import vectors
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import NonFiniteError
from apexrl.replay import Replay
from apexrl.roles.actor import VERSION, step_fields
from apexrl.roles.batch_source import Ready
from apexrl.roles.shared_model import SharedModel
from apexrl.roles.trainer import Trainer, TrainingBatches, batch_sizes
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.metric_catalogue import KNOWN
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import ActionSpec, EnvSpec, Field

T = 4
SPEC = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec(n=2))


def settings(agent: str = "a2c", **changes: Any) -> Config:
    small = {"hidden": (8,), "unroll_length": T, "batch_size": 8, "topology": "ga3c", "learning_rate": 0.01}
    return override(with_agent(Config(), agent), {**small, **changes})


def filled(unrolls: int, version: int = 1, seed: int = 0, reward: float = 1.0, ending: float = 0.1) -> Replay:
    """A queue of unrolls of one stream, whose steps are all of ``version``."""
    fields = step_fields(SPEC, ActorCritic(SPEC, settings().agent).step_spec)
    replay = Replay(kind="unroll", length=T, fields=fields, capacity=max(unrolls, 8), sampler="fifo", writers=1)
    rng = np.random.default_rng(seed)
    writer = replay.writer()
    for _ in range(unrolls * T + (unrolls > 0)):
        writer.append(
            {
                "observation": rng.normal(size=(1, 3)).astype(np.float32),
                "action": rng.integers(2, size=1),
                "log_prob": np.full(1, np.log(0.5), np.float32),
                VERSION: np.full(1, version),
                "reward": np.full(1, reward, np.float32) * rng.uniform(0.5, 1.0),
                "terminated": rng.random(1) < ending,
                "truncated": np.zeros(1, np.bool_),
            }
        )
    return replay


@pytest.mark.parametrize(
    ("least", "most", "sizes"),
    [(1, 8, [8, 4, 2, 1]), (8, 8, [8]), (3, 8, [8, 4, 3]), (5, 12, [12, 6, 5]), (1, 1, [1]), (6, 12, [12, 6])],
)
def test_batches_go_from_most_to_least_by_halves(least: int, most: int, sizes: list[int]) -> None:
    assert batch_sizes(least, most) == sizes


def test_a_batch_is_as_large_as_what_waits(stage: Any) -> None:
    context = stage.context("model_server")
    batches = TrainingBatches(context, settings(training_min_batch=2), filled(15))
    found = [batch if batch is None else len(batch) for batch in (batches.next() for _ in range(5))]
    assert found == [8, 4, 2, None, None]  # one is left: fewer than a trainer takes
    assert TrainingBatches(context, settings(training_min_batch=1), filled(1)).next() is not None


def test_what_several_trainers_have_in_hand_is_lost_with_them_and_counted(stage: Any) -> None:
    replay = filled(15)
    batches = TrainingBatches(stage.context("model_server"), settings(), replay)
    first, second = batches.next(), batches.next()
    assert first is not None
    assert second is not None
    batches.done(second)
    replay.release()  # the end of its owner
    assert batches.next() is not None  # somebody takes its place
    assert replay.stats()["lost"] == len(first) == 8


def test_a_trainer_that_waits_is_woken_by_what_is_written_in_the_same_process(stage: Any) -> None:
    context = stage.context("model_server")
    context.patience = 20.0
    replay = filled(0)
    batches = TrainingBatches(context, settings(), replay)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(batches.next()))
    thread.start()
    rows = {"observation": np.zeros((1, 3), np.float32), "action": np.zeros(1, np.int64), VERSION: np.ones(1, np.int64)}
    results = {"reward": np.ones(1, np.float32), "terminated": np.zeros(1, bool), "truncated": np.zeros(1, bool)}
    writer = replay.writer()
    for _ in range(T + 1):
        writer.append({**rows, "log_prob": np.zeros(1, np.float32), **results})
    thread.join(20.0)
    assert not thread.is_alive()
    assert len(found[0]) == 1


def model(stage: Any, config: Config) -> SharedModel:
    RunFolder(stage._folder).checkpoints.mkdir(parents=True, exist_ok=True)
    return SharedModel(stage.context("model_server"), config, SPEC, InlineWeights())


def ready(agent: Any, seed: int, version: int = 1, reward: float = 1.0) -> Ready:
    replay = filled(8, version, seed, reward)
    batch = replay.sample(8)
    return Ready(batch, agent.prepare(batch))


def test_instances_have_the_models_memory_and_numbers_of_their_own(stage: Any) -> None:
    whole = model(stage, settings(optimizer="adam"))
    trainer, other = (whole.instance(number, learns=True) for number in range(2))
    predictor = whole.instance(0, learns=False)
    before = predictor.weights()
    seen, exploration = {"observation": np.zeros((64, 3), np.float32)}, np.zeros(64, np.float32)
    drawn = [agent.act(seen, None, exploration).actions for agent in (trainer, other, predictor)]
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    whole.learn(trainer, ready(trainer, 1))
    for agent in (other, predictor):
        for name, value in agent.weights().items():
            np.testing.assert_array_equal(value, trainer.weights()[name])
    assert any(not np.array_equal(value, before[name]) for name, value in predictor.weights().items())
    ours, theirs = vectors(trainer), vectors(other)
    assert all(np.shares_memory(ours[name], theirs[name]) for name in ours)  # the optimizer's state too


def test_each_trainer_scales_discounts_by_the_models_updates(stage: Any) -> None:
    config = settings(anneal_horizon=True, gamma_start=0.5, gamma=0.9, horizon_updates=2)
    whole = model(stage, config)
    batches = TrainingBatches(stage.context("model_server"), config, filled(16))
    first, second = (Trainer(whole, number, batches, 0) for number in range(2))
    found: list[float] = []

    def prepare(agent: Any, batch: Any) -> Any:
        found.append(agent.horizon.gamma)
        return agent.prepare(batch)

    for trainer in (first, second):
        trainer._prepare = partial(prepare, trainer._agent)
        assert trainer.step()
    assert found == [0.5, horizon(config.agent, 1).gamma]


@pytest.mark.parametrize("agent", ["a2c", "ppo"])
def test_updates_of_many_threads_are_made_one_at_a_time_and_none_is_lost(stage: Any, agent: str) -> None:
    """With sums in any order the outcome differs by rounding alone: plain steps along gradients that do not depend on
    the parameters. (ppo makes several steps, and only its updates are counted.)"""
    whole = model(stage, settings(agent, optimizer="sgd", momentum=0.0, learning_rate=1.0))
    agents = [whole.instance(number, learns=True) for number in range(4)]
    inside, rounds = threading.Semaphore(1), 25 if agent == "a2c" else 3

    def alone(step: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            assert inside.acquire(blocking=False), "two threads change the model"
            try:
                return step(*args)
            finally:
                inside.release()

        return guarded

    for one in agents:
        if agent == "a2c":
            found = one.gradients(ready(one, 0).prepared)
            found.groups["policy_value"].fill_(1.0)
            one.gradients = lambda prepared, found=found: found
            one.apply = alone(one.apply)
        else:
            one.update = alone(one.update)
    start = vectors(agents[0])["policy_value/online"].copy()
    errors: list[BaseException] = []

    def learn(one: Any) -> None:
        try:
            for seed in range(rounds):
                whole.learn(one, ready(one, seed))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=learn, args=(one,)) for one in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not errors, errors[0]
    assert stage.run.totals["updates"] == 4 * rounds
    assert whole.version == 4 * rounds + 1
    if agent == "a2c":
        np.testing.assert_allclose(vectors(agents[0])["policy_value/online"], start - 4 * rounds, rtol=1e-5)
    whole.save()
    found = checkpoint.load_latest(RunFolder(stage._folder).checkpoints)
    assert found is not None
    assert found.arrays["updates"] == found.metadata["updates"] == 4 * rounds


def test_what_is_said_of_learning(stage: Any) -> None:
    whole = model(stage, settings())
    agent = whole.instance(0, learns=True)
    for _ in range(3):
        whole.learn(agent, ready(agent, 0, version=1))
    whole.report()
    (said,) = stage.values("metrics")
    assert said["values"]["training_batch"] == 8
    assert {f"agent/{name}" for name in said["values"]} <= KNOWN.keys()
    assert said["values"]["loss"]
    assert said["lag"][0] == pytest.approx(1.0)  # versions 1, 2 and 3 met steps of version 1
    assert said["lag"][2] == 2.0
    assert said["updates"] == 3


def test_steps_that_are_too_old_are_not_learned_from(stage: Any) -> None:
    whole = model(stage, settings(max_policy_lag=2))
    batches = TrainingBatches(stage.context("model_server"), settings(batch_size=1), filled(8, ending=0.0))
    trainer = Trainer(whole, 0, batches, 2)
    assert all(trainer.step() for _ in range(8))
    assert stage.run.totals["updates"] == 8
    assert stage.run.totals["aged_steps"] == 5 * T  # of updates 4 to 8


def test_a_gradient_that_is_not_finite_names_batch_and_update_and_changes_nothing(stage: Any) -> None:
    whole = model(stage, settings())
    agent = whole.instance(0, learns=True)
    before = agent.weights()
    with pytest.raises(NonFiniteError, match=r"update 1 \(batch of 8 items, keys 0x.*is NaN or infinite"):
        whole.learn(agent, ready(agent, 0, reward=1e38))
    for name, value in agent.weights().items():
        np.testing.assert_array_equal(value, before[name])
    assert whole.version == 1


def test_a_successor_goes_on_from_the_checkpoint_with_a_higher_version(stage: Any) -> None:
    whole = model(stage, settings())
    agent = whole.instance(0, learns=True)
    for seed in range(3):
        whole.learn(agent, ready(agent, seed))
    whole.save()
    saved = agent.weights()
    whole.learn(agent, ready(agent, 9))
    whole.publish()
    published = whole._weights.version
    assert published == whole.version == 5
    after = SharedModel(stage.context("model_server"), settings(), SPEC, whole._weights)
    assert whole._weights.version == after.version == published + 1
    for name, value in after.instance(0, learns=False).weights().items():
        np.testing.assert_array_equal(value, saved[name])
