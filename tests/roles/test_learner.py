from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from apexrl.config import AgentConfig, Config, LearnerConfig, ReplayConfig
from apexrl.errors import NonFiniteError
from apexrl.replay import Replay
from apexrl.roles import Learner
from apexrl.roles.actor import VERSION, step_fields
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import ActionSpec, EnvSpec, Field

SPEC = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec(n=2))
CONFIG = Config(
    agent=AgentConfig(hidden=(8,), n_step=1),
    replay=ReplayConfig(capacity=1000, min_size=50),
    learner=LearnerConfig(batch_size=16, publish_period_updates=4, checkpoint_seconds=1000.0),
)


def filled(steps: int = 200, reward: float = 1.0) -> Replay:
    """A replay with one stream of random steps, each stamped with version 1."""
    replay = Replay(
        kind="transition",
        fields=step_fields(SPEC, {}),
        capacity=CONFIG.replay.capacity,
        min_size=CONFIG.replay.min_size,
        writers=1,
        streams=1,
    )
    fill(replay, steps, reward)
    return replay


def fill(replay: Replay, steps: int = 200, reward: float = 1.0) -> None:
    random = np.random.default_rng(0)
    writer = replay.writer(streams=1)
    for _ in range(steps):
        writer.append(
            {
                "observation": random.normal(size=(1, 3)).astype(np.float32),
                "action": random.integers(2, size=1),
                VERSION: np.ones(1, np.int64),
                "reward": np.full(1, reward, np.float32),
                "terminated": random.random(1) < 0.1,
                "truncated": np.zeros(1, np.bool_),
            }
        )


@pytest.fixture
def replay() -> Iterator[Replay]:
    with filled() as made:
        yield made


def make(stage: Any, replay: Replay, config: Config = CONFIG, weights: InlineWeights | None = None) -> Learner:
    board = InlineWeights() if weights is None else weights
    return Learner(stage.context("learner"), config=config, spec=SPEC, replay=replay, weights=board)


def folder_of(stage: Any) -> RunFolder:
    return RunFolder(stage.context("x").folder)


def test_it_publishes_before_anything_else_and_then_by_period(stage: Any, replay: Replay) -> None:
    weights = InlineWeights()
    learner = make(stage, replay, weights=weights)
    assert weights.version == 1
    seen = []
    for _ in range(9):
        assert learner.step()
        seen.append(weights.version)
    assert seen == [1, 1, 4, 4, 4, 4, 8, 8, 8]
    assert stage.run.totals["updates"] == 9


def test_with_too_few_items_it_waits(stage: Any) -> None:
    with filled(20) as replay:
        assert not make(stage, replay).step()
        assert stage.run.totals["updates"] == 0


def test_priorities_are_written_back(stage: Any, replay: Replay) -> None:
    learner = make(stage, replay)
    learner.step()
    assert replay.stats()["updates_applied"] == 16


def test_lag_and_metrics_are_reported(stage: Any, replay: Replay) -> None:
    learner = make(stage, replay)
    for _ in range(3):
        learner.step()
    learner.close()
    report = stage.values("metrics")[-1]
    assert report["updates"] == 3
    assert report["lag"] == [1.0, 2.0, 2.0]  # versions 1, 2, 3 met steps of version 1
    assert report["lag_histogram"] == report["run_lag_histogram"] == {0: 16, 1: 16, 2: 16}
    assert np.isfinite(report["values"]["loss"])


@pytest.mark.parametrize("prefetch", [0, 3])
def test_what_is_older_than_the_limit_is_not_learned_from(stage: Any, replay: Replay, prefetch: int) -> None:
    limited = replace(
        CONFIG,
        agent=replace(CONFIG.agent, optimizer="sgd"),
        learner=replace(CONFIG.learner, max_policy_lag=2, prefetch=prefetch),
    )
    learner = make(stage, replay, limited)
    seen = []
    for _ in range(5):
        assert learner.step()
        seen.append({name: np.array(value) for name, value in learner._agent.weights().items()})
    learner.close()
    report = stage.values("metrics")[-1]
    assert report["run_lag"] == [1.0, 2.0, 2.0]  # of updates 1, 2, 3; after them all steps are too old
    assert stage.run.totals["aged_steps"] == 2 * 16
    assert stage.run.totals["updates"] == 5
    moved = [sum(float(np.abs(b[name] - a[name]).sum()) for name in a) for a, b in pairwise(seen)]
    assert min(moved[:2]) > 0.0
    assert moved[2:] == [0.0, 0.0]


def test_the_end_leaves_weights_and_a_checkpoint(stage: Any, replay: Replay) -> None:
    weights = InlineWeights()
    learner = make(stage, replay, weights=weights)
    for _ in range(6):
        learner.step()
    learner.close()
    assert weights.version == 7
    found = checkpoint.load_latest(folder_of(stage).checkpoints)
    assert found is not None
    assert found.metadata["updates"] == 6
    assert stage.values("checkpoint") == [{"path": str(found.path), "updates": 6}]


def test_a_successor_restores_the_checkpoint_and_versions_go_on(stage: Any, replay: Replay) -> None:
    weights = InlineWeights()
    first = make(stage, replay, weights=weights)
    for _ in range(6):
        first.step()
    first.close()
    second = make(stage, replay, weights=weights)
    assert weights.version == 8
    for name, value in first._agent.state_dict().items():
        np.testing.assert_array_equal(value, second._agent.state_dict()[name])
    assert any("restored generation-0000-update-000000006" in values["text"] for values in stage.values("log"))


def test_without_a_checkpoint_a_successor_takes_up_the_published_weights(stage: Any, replay: Replay) -> None:
    weights = InlineWeights()
    first = make(stage, replay, weights=weights)
    for _ in range(8):
        first.step()
    published = weights.latest()
    assert published is not None
    second = make(stage, replay, weights=weights)
    assert weights.version == 9
    for name, value in second._agent.weights().items():
        np.testing.assert_array_equal(value, published[1][name])


def test_checkpoints_come_by_period_and_old_ones_go(stage: Any, replay: Replay) -> None:
    config = replace(CONFIG, learner=replace(CONFIG.learner, checkpoint_seconds=1.0, checkpoints_kept=2))
    learner = make(stage, replay, config)
    for _ in range(4):
        learner.step()
        stage.run.totals["env_steps"] += 1001  # a second of this clock
    kept = [path.name for path in checkpoint.numbered(folder_of(stage).checkpoints)]
    assert kept == ["generation-0000-update-000000003.safetensors", "generation-0000-update-000000004.safetensors"]


def test_the_replay_is_saved_when_asked_for(stage: Any, replay: Replay) -> None:
    config = replace(CONFIG, learner=replace(CONFIG.learner, save_replay=True))
    learner = make(stage, replay, config)
    learner.step()
    learner.close()
    with Replay.load(folder_of(stage).replay_path) as loaded:
        assert len(loaded) == len(replay)


def test_a_pace_is_kept(stage: Any, replay: Replay) -> None:
    config = replace(CONFIG, learner=replace(CONFIG.learner, updates_per_second=10.0))
    learner = make(stage, replay, config)
    for _ in range(300):
        learner.step()
        stage.run.totals["env_steps"] += 10  # 10 ms of this clock
    assert stage.run.totals["updates"] == pytest.approx(30, abs=1)


def test_a_turn_without_a_batch_is_not_spent(stage: Any) -> None:
    config = replace(CONFIG, learner=replace(CONFIG.learner, updates_per_second=10.0))
    with filled(steps=0) as replay:
        learner = make(stage, replay, config)
        stage.run.totals["env_steps"] += 1000  # a second of this clock
        assert not any(learner.step() for _ in range(20))
        fill(replay)
        made = sum(learner.step() for _ in range(30))
        assert made == 11  # the one that is due, and a second's to catch up


def test_a_loss_that_is_not_finite_names_update_batch_and_checkpoint(stage: Any) -> None:
    with filled(reward=3e38) as replay:
        config = replace(CONFIG, agent=replace(CONFIG.agent, gamma=1.0))
        learner = make(stage, replay, config)
        learner._checkpoint()
        before = learner._agent.weights()
        kept = {name: np.array(value) for name, value in before.items()}
        with pytest.raises(
            NonFiniteError, match=r"update 1 \(batch of 16 items, keys 0x.*generation-0000-update-000000000"
        ) as caught:
            learner.step()
        assert [str(caught.value).count(words) for words in ("update 1", "earning", "as they were")] == [1, 1, 1]
        for name, value in learner._agent.weights().items():
            np.testing.assert_array_equal(value, kept[name])
