"""Learners that make every update together: one agent in several places, whoever of them begins anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apexrl import agents
from apexrl.agents.actor_critic import ActorCritic
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import NonFiniteError
from apexrl.links.averaging.gradient_averaging import GradientAveraging
from apexrl.replay import Replay
from apexrl.roles import Learner
from apexrl.roles.actor import VERSION, step_fields
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import ActionSpec, EnvSpec, Field

T, BATCH, CLIP = 4, 3, 0.5
SPEC = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec(n=2))
CONFIG = override(
    agents.with_agent(Config(), "impala"),
    {"hidden": (8,), "unroll_length": T, "batch_size": BATCH, "checkpoint_seconds": 1000.0, "learning_rate": 0.01}
    | {"gradient_clip": CLIP},
)


def filled(seed: int, batches: int = 12, reward: float = 1.0) -> Replay:
    """A queue of unrolls of one stream, each step of version 1."""
    agent = ActorCritic(SPEC, CONFIG.agent)
    replay = Replay(
        kind="unroll", length=T, fields=step_fields(SPEC, agent.step_spec), capacity=batches * BATCH, sampler="fifo",
        writers=1, streams=1,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    writer = replay.writer(streams=1)
    for _ in range(batches * BATCH * T + 1):
        writer.append(
            {
                "observation": rng.normal(size=(1, 3)).astype(np.float32),
                "action": rng.integers(2, size=1),
                "log_prob": np.full(1, np.log(0.5), np.float32),
                VERSION: np.ones(1, np.int64),
                "reward": np.array([reward * rng.uniform(0.5, 1.0)], np.float32),
                "terminated": rng.random(1) < 0.1,
                "truncated": np.zeros(1, np.bool_),
            }
        )
    return replay


class Together:
    """Learners that take turns."""

    def __init__(self, stage: Any, config: Config = CONFIG, count: int = 2, rewards: tuple[float, ...] = (1.0, 1.0)):
        self.link = GradientAveraging(count, patience=1.0, shared=False)
        self.stage, self.config, self.weights = stage, config, InlineWeights()
        self.queues = [filled(seed, reward=reward) for seed, reward in zip(range(count), rewards, strict=False)]
        self.learners = [self.begin(index) for index in range(count)]

    def begin(self, index: int) -> Learner:
        """A learner's generation, with a seed of its own: what they have in common they have from the first."""
        context = self.stage.context("learner", index=index, seed=100 + index)
        return Learner(
            context, config=self.config, spec=SPEC, replay=self.queues[index], weights=self.weights,
            averaging=self.link,
        )  # fmt: skip

    def rounds(self, count: int) -> None:
        for _ in range(count):
            for learner in self.learners:
                learner.step()

    def level(self) -> None:
        """Let those that are behind by an update make it."""
        while len({learner._version for learner in self.learners}) > 1:
            min(self.learners, key=lambda learner: learner._version).step()

    def parameters(self) -> list[Any]:
        return [learner._agent.networks["policy_value"].parameters.vector.numpy().copy() for learner in self.learners]  # type: ignore[attr-defined]

    def states(self) -> list[dict[str, Any]]:
        return [learner._agent.networks["policy_value"].state_dict() for learner in self.learners]  # type: ignore[attr-defined]


@pytest.fixture
def together(stage: Any) -> Iterator[Together]:
    made = Together(stage)
    yield made
    for queue in made.queues:
        queue.close()


def test_all_have_the_same_parameters_and_optimizers(together: Together) -> None:
    together.rounds(8)
    together.level()
    one, two = together.states()
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
    updates = together.stage.run.totals["updates"]
    assert updates >= 4
    assert together.queues[0].stats()["sampled"] >= updates * BATCH


def test_an_update_is_that_of_the_mean_gradient_clipped_as_a_whole(together: Together) -> None:
    alone = ActorCritic(SPEC, replace(CONFIG.agent, gradient_clip=0.0), seed=100)  # as the first learner began
    queues = [filled(seed) for seed in range(2)]
    for update in range(3):
        while together.stage.run.totals["updates"] <= update or len(set(map(bytes, together.parameters()))) > 1:
            together.rounds(1)
        batches = [alone.prepare(queue.sample(BATCH)) for queue in queues]
        gradients = [alone.gradients(batch).groups["policy_value"].clone() for batch in batches]
        mean = (gradients[0] + gradients[1]) / 2
        norm = float(torch.linalg.vector_norm(mean))
        assert CLIP < norm < 0.97 * np.mean([float(torch.linalg.vector_norm(one)) for one in gradients])
        alone.apply({"policy_value": mean * (CLIP / norm)})
        expected = alone._network.parameters.vector.numpy()
        np.testing.assert_allclose(together.parameters()[0], expected, rtol=0, atol=0)
    for queue in queues:
        queue.close()


def test_the_others_begin_with_initial_weights_as_the_first_does(stage: Any, tmp_path: Path) -> None:
    wanted = ActorCritic(SPEC, CONFIG.agent, seed=7)
    checkpoint.save_weights(tmp_path / "begin.safetensors", wanted.weights(), {"updates": 3})
    made = Together(stage, override(CONFIG, {"initial_weights": str(tmp_path / "begin.safetensors")}))
    for queue in made.queues:
        queue.close()
    expected = wanted.networks["policy_value"].parameters.vector.numpy()
    for parameters in made.parameters():
        np.testing.assert_array_equal(parameters, expected)


def test_the_first_publishes_counts_and_keeps(together: Together) -> None:
    together.rounds(8)
    updates = together.stage.run.totals["updates"]
    assert together.weights.version == updates + 1
    newest = together.weights.latest()
    assert newest is not None
    for name, value in together.learners[0]._agent.weights().items():
        np.testing.assert_array_equal(value, newest[1][name])
    for learner in together.learners:
        learner.close()
    folder = RunFolder(together.stage.context("x").folder)
    assert [path.name for path in checkpoint.numbered(folder.checkpoints)] == [
        f"generation-0000-update-{updates:09d}.safetensors"
    ]
    lags = [values for values in together.stage.values("metrics") if values["run_lag_histogram"]]
    assert {values["reporter"] for values in lags} == {"learner-0", "learner-1"}
    steps = sum(sum(values["run_lag_histogram"].values()) for values in lags[-2:])
    assert updates * 2 * BATCH * T * 0.7 < steps <= (updates + 1) * 2 * BATCH * T


def test_another_publishes_what_all_have_to_the_actors_beside_it(together: Together) -> None:
    beside = InlineWeights()
    together.learners[1] = Learner(
        together.stage.context("learner", index=1, seed=101), config=CONFIG, spec=SPEC, replay=together.queues[1],
        weights=beside, averaging=together.link, publisher=1,
    )  # fmt: skip
    assert beside.version == 0  # what it began with is not what the others have
    for rounds in (1, 6):
        while together.weights.version != beside.version or together.weights.version <= rounds:
            together.rounds(1)
            together.level()
        newest, same = together.weights.latest(), beside.latest()
        assert newest is not None
        assert same is not None
        for name, value in newest[1].items():
            np.testing.assert_array_equal(value, same[1][name])


def test_a_learner_that_begins_anew_takes_the_others_state_and_none_is_lost(together: Together) -> None:
    together.rounds(5)
    before = together.stage.run.totals["updates"]
    together.learners[1] = together.begin(1)
    taken = together.queues[0].stats()["sampled"]
    together.rounds(6)
    together.level()
    assert together.stage.run.totals["updates"] >= before + 3
    one, two = together.parameters()
    np.testing.assert_array_equal(one, two)
    made = together.stage.run.totals["updates"] - before
    # the first makes the update that was under way once more, from the batch that it holds
    assert together.queues[0].stats()["sampled"] <= taken + made * BATCH


def test_when_the_first_begins_anew_the_others_state_holds_and_not_its_older_checkpoint(together: Together) -> None:
    together.rounds(5)
    together.learners[0]._checkpoint()
    kept = together.parameters()[0]
    together.rounds(3)
    newest = together.states()[1]
    updates, version = together.stage.run.totals["updates"], together.weights.version
    together.learners[0] = together.begin(0)
    assert together.weights.version == version + 1  # never back
    np.testing.assert_array_equal(together.parameters()[0], kept)
    together.rounds(2)  # both are in a new epoch, and at their gradients
    if together.stage.run.totals["updates"] == updates:
        for name, value in newest.items():
            np.testing.assert_array_equal(together.states()[0][name], value)
    while together.stage.run.totals["updates"] < updates + 5:
        together.rounds(1)
    together.level()
    one, two = together.parameters()
    np.testing.assert_array_equal(one, two)
    steps = [float(state["optimizer/steps"]) for state in together.states()]
    assert steps[0] == steps[1] > updates  # of the optimizer, too
    assert abs(together.learners[0]._version - together.learners[1]._version) <= 1


def test_the_age_limit_follows_the_firsts_version(stage: Any) -> None:
    together = Together(stage, override(CONFIG, {"max_policy_lag": 2}))
    # a run that had come this far before
    together.weights.publish(together.learners[0]._agent.weights(), 50)
    together.learners[0] = together.begin(0)
    together.rounds(10)
    assert stage.run.totals["updates"] >= 4
    versions = [learner._version for learner in together.learners]
    assert min(versions) > 50
    assert stage.run.totals["aged_steps"] > 0
    for learner in together.learners:
        learner.close()
    steps = [sum(values["run_lag_histogram"].values()) for values in stage.values("metrics")[-2:]]
    assert steps[0] == 0  # of version 1, all too old for the first
    for queue in together.queues:
        queue.close()


def test_a_gradient_that_is_not_finite_ends_it(stage: Any) -> None:
    together = Together(stage, rewards=(1.0, 3e38))
    with pytest.raises(NonFiniteError, match=r"update 1 \(batch of 3 items"):
        together.rounds(4)
    for queue in together.queues:
        queue.close()
