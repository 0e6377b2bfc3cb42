"""Gorila's learners and parameter servers in one process: the same parameters as one agent's, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from apexrl import agents
from apexrl.agents.named_vectors import sizes, vectors
from apexrl.agents.parameter_layout import places
from apexrl.agents.trained_agent import refresh
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import NonFiniteError, WaitTimeout
from apexrl.links.local.gradient_ring import GradientLink
from apexrl.links.local.parameter_slices import ParameterSlices
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.roles import GradientLearner, ParameterServer
from apexrl.roles.gradient_learner import Outliers
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.metric_catalogue import KNOWN
from apexrl.spec import ActionSpec, EnvSpec, Field

OBSERVATION = {"observation": Field((3,), "float32")}
DISCRETE = EnvSpec(OBSERVATION, ActionSpec(n=2))
BOX = EnvSpec(OBSERVATION, ActionSpec((2,), "float32", low=np.full(2, -1, np.float32), high=np.ones(2, np.float32)))
SMALL = {"hidden": (40, 24), "target_period_updates": 3, "batch_size": 8, "learning_rate": 0.01, "device": "cpu"}
DQN = override(agents.with_agent(Config(), "dqn"), SMALL)
SAC = override(agents.with_agent(Config(), "sac"), {**SMALL, "polyak": 0.1, "policy_period_updates": 2})
ROWS = 8


@dataclass
class Sample:
    """A batch (``protocols.Sampled``)."""

    data: dict[str, NDArray[Any]]
    keys: NDArray[np.uint64]
    weights: NDArray[np.float32]


def sample(spec: EnvSpec, random: np.random.Generator, version: int = 1, scale: float = 1.0) -> Sample:
    seen = random.normal(size=(2, ROWS, 3)).astype(np.float32)
    actions = random.integers(2, size=ROWS) if spec.action.discrete else random.uniform(-1, 1, (ROWS, 2))
    data: dict[str, NDArray[Any]] = {
        "observation": seen[0],
        "next_observation": seen[1],
        "action": actions.astype(spec.action.dtype),
        "reward": scale * random.normal(size=ROWS).astype(np.float32),
        "discount": np.where(random.random(ROWS) < 0.1, 0.0, 0.9).astype(np.float32),
        "version": np.full(ROWS, version),
    }
    return Sample(data, np.arange(ROWS, dtype=np.uint64), random.uniform(0.5, 1, ROWS).astype(np.float32))


class Feed:
    """Stands for the replay role and for its learners' ends: gives out batches and remembers priorities."""

    def __init__(self, samples: Iterator[Sample]) -> None:
        self.samples = samples
        self.priorities: list[NDArray[np.float32]] = []

    def learner(self, index: int) -> Feed:
        return self

    def sample(self, batch_size: int, beta: float, timeout: float) -> Sample:
        found = next(self.samples, None)
        if found is None:
            raise WaitTimeout("no more")
        return found

    def update_priorities(self, keys: NDArray[np.uint64], priorities: NDArray[np.float32]) -> None:
        self.priorities.append(priorities)


def samples(spec: EnvSpec, count: int, seed: int = 0, **how: Any) -> list[Sample]:
    random = np.random.default_rng(seed)
    return [sample(spec, random, **how) for _ in range(count)]


class Rig:
    """Servers and learners, wired."""

    def __init__(
        self, stage: Any, config: Config, spec: EnvSpec, shards: int = 1, feeds: tuple[list[Sample], ...] = ()
    ) -> None:
        self.stage, self.config, self.spec = stage, config, spec
        agent = self.agent()
        self.shards = ParameterSlices(sizes(agent), places(agent), shards)
        self.parameters = ShardedParameters(self.shards)
        self.gradients = GradientLink(self.shards, len(feeds))
        self.feeds = [Feed(iter(feed)) for feed in feeds]
        self.servers = [self.server(shard) for shard in range(shards)]
        self.learners = [self.learner(index) for index in range(len(feeds))]

    def agent(self) -> Any:
        return agents.agent_class(self.config.agent.agent)(self.spec, self.config.agent, "cpu", self.config.seed)

    def ports(self) -> dict[str, Any]:
        shared = {"parameters": self.parameters, "gradients": self.gradients}
        return {"config": self.config, "spec": self.spec, **shared}

    def server(self, shard: int) -> ParameterServer:
        return ParameterServer(self.stage.context("parameter_server", shard), **self.ports())

    def learner(self, index: int) -> GradientLearner:
        batches: Any = self.feeds[index]
        return GradientLearner(self.stage.context("gradient_learner", index), **self.ports(), batches=batches)

    def run(self) -> None:
        """Learners and servers in turn until there are no more batches."""
        while [learner for learner in self.learners if learner.step()]:
            self.serve()

    def serve(self) -> None:
        for server in self.servers:
            while server.step():
                pass

    def held(self) -> dict[str, NDArray[np.float32]]:
        """What the servers hold, under the names of an agent's vectors."""
        found = {name: np.zeros(size, np.float32) for name, size in self.shards.vectors.items()}
        self.parameters.collect(found)
        return found


def assert_same(held: dict[str, NDArray[np.float32]], agent: Any, parts: str = "") -> None:
    for name, value in vectors(agent).items():
        if parts in name:
            np.testing.assert_array_equal(held[name], value, err_msg=name)


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "adagrad", "sgd"])
def test_servers_make_of_gradients_what_one_agent_makes_of_updates(stage: Any, optimizer: str, shards: int) -> None:
    config = override(DQN, {"optimizer": optimizer, "momentum": 0.5})
    batches = samples(DISCRETE, 10)
    rig = Rig(stage, config, DISCRETE, shards, (batches,))
    alone = rig.agent()
    rig.run()
    for batch in batches:
        alone.update(alone.prepare(batch))
    assert_same(rig.held(), alone)
    assert rig.parameters.version == 11
    assert stage.run.totals["updates"] == stage.run.totals["gradients"] == 10


@pytest.mark.parametrize("changes", [{}, {"polyak": 0.0}], ids=["polyak", "copies"])
@pytest.mark.parametrize("shards", [1, 3])
def test_groups_that_come_now_and_then_and_targets_follow_as_in_one_agent(
    stage: Any, shards: int, changes: dict[str, Any]
) -> None:
    batches = samples(BOX, 9)
    rig = Rig(stage, override(SAC, changes), BOX, shards, (batches,))
    alone = rig.agent()
    rig.run()
    for batch in batches:
        alone.update(alone.prepare(batch))
    for part in ("online", "target", "moment"):
        assert_same(rig.held(), alone, part)


def test_actors_read_what_an_agent_would_publish(stage: Any) -> None:
    batches = samples(BOX, 4)
    rig = Rig(stage, SAC, BOX, 3, (batches,))
    alone = rig.agent()
    first = rig.parameters.latest()
    assert first is not None
    assert first[0] == 1
    rig.run()
    for batch in batches:
        alone.update(alone.prepare(batch))
    newest = rig.parameters.latest(newer_than=1)
    assert newest is not None
    version, weights = newest
    assert version == 5
    expected = alone.weights()
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value)
    rig.agent().load(weights)


def test_gradients_of_several_learners_are_applied_as_they_come(stage: Any) -> None:
    feeds = (samples(DISCRETE, 6, seed=1), samples(DISCRETE, 6, seed=2))
    rig = Rig(stage, override(DQN, {"learners": 2}), DISCRETE, 2, feeds)
    alone, before = rig.agent(), rig.agent()
    rig.run()
    for one, two in zip(*feeds, strict=True):  # both gradients of a round are of the same parameters
        for name, value in vectors(alone).items():
            vectors(before)[name][:] = value
        refresh(before)
        for batch in (one, two):
            alone.apply(before.gradients(before.prepare(batch)).groups)
    assert_same(rig.held(), alone)
    assert rig.parameters.version == 13


def test_stale_gradients_are_refused_and_counted_by_slice(stage: Any) -> None:
    feeds = tuple(samples(DISCRETE, 1, seed=seed) for seed in range(4))
    rig = Rig(stage, override(DQN, {"learners": 4, "max_gradient_lag": 2}), DISCRETE, 2, feeds)
    for learner in rig.learners:
        assert learner.step()
    rig.serve()  # of lags 0, 1, 2 and 3
    assert rig.parameters.version == 4
    assert stage.run.totals["updates"] == 3
    assert stage.run.totals["stale_gradients"] == 2
    assert rig.parameters.gradient_lag > 0


def test_outliers_are_left_out_counted_and_still_prioritised(stage: Any) -> None:
    usual = samples(DISCRETE, 120)
    odd = samples(DISCRETE, 1, seed=5, scale=1000.0)
    rig = Rig(stage, override(DQN, {"outlier_deviations": 5.0}), DISCRETE, 1, ([*usual, *odd],))
    for _ in usual:
        assert rig.learners[0].step()
        rig.serve()
    before = rig.held()
    assert rig.learners[0].step()
    rig.serve()
    assert stage.run.totals["outlier_batches"] == 1
    assert stage.run.totals["gradients"] == 120
    assert len(rig.feeds[0].priorities) == 121
    for name, value in rig.held().items():
        np.testing.assert_array_equal(value, before[name])


def test_an_outlier_is_far_above_the_mean_of_what_came_before() -> None:
    random = np.random.default_rng(0)
    outliers = Outliers(4.0)
    assert not any(outliers.leaves_out(loss) for loss in random.normal(10, 1, 300))
    assert [outliers.leaves_out(loss) for loss in (20.0, 13.0, 1.0)] == [True, False, False]
    assert not any(Outliers(0.0).leaves_out(loss) for loss in [1.0] * 200 + [1e9])
    later = [outliers.leaves_out(loss) for loss in random.normal(20, 1, 2000)]
    assert later[0]
    assert not any(later[-1000:])  # what stays large is no outlier for ever


def test_a_learner_waits_until_its_own_gradient_is_applied_everywhere(stage: Any) -> None:
    rig = Rig(stage, DQN, DISCRETE, 2, (samples(DISCRETE, 6),))
    learner = rig.learners[0]
    assert [learner.step() for _ in range(3)] == [True, False, False]
    while rig.servers[0].step():
        pass
    assert not learner.step()  # the other has not
    rig.serve()
    assert learner.step()
    assert stage.run.totals["gradients"] == 2
    rig.serve()
    rig.run()
    assert rig.parameters.gradient_lag == 0.0
    assert stage.run.totals["updates"] == stage.run.totals["gradients"] == 6


def test_a_learner_samples_a_replay_of_its_own(stage: Any) -> None:
    batches = samples(DISCRETE, 5)
    rig = Rig(stage, DQN, DISCRETE, 1, (batches,))
    own: Any = Feed(iter(batches))
    rig.learners = [GradientLearner(stage.context("gradient_learner", 0), **rig.ports(), replay=own)]
    alone = rig.agent()
    rig.run()
    for batch in batches:
        alone.update(alone.prepare(batch))
    assert_same(rig.held(), alone)
    assert len(own.priorities) == 5


def test_a_dead_server_is_followed_by_one_that_goes_on_where_it_was(stage: Any) -> None:
    batches = samples(DISCRETE, 12)
    rig = Rig(stage, DQN, DISCRETE, 2, (batches,))
    alone = rig.agent()
    for number in range(12):
        if number % 4 == 2:
            rig.servers[number % 2] = rig.server(number % 2)
        assert rig.learners[0].step()
        if number == 7:
            rig.servers[1] = rig.server(1)  # with a gradient on its way
        rig.serve()
    for batch in batches:
        alone.update(alone.prepare(batch))
    assert_same(rig.held(), alone)


def test_one_that_died_amid_an_update_goes_back_to_what_it_had_published(stage: Any) -> None:
    rig = Rig(stage, DQN, DISCRETE, 2, (samples(DISCRETE, 5),))
    rig.run()
    published = rig.parameters.memory(1).published()
    assert published is not None
    memory = rig.parameters.memory(1)
    memory.begin_update()
    memory.vectors["q/online"][:10] = 99.0
    rig.servers[1] = rig.server(1)
    assert not memory.torn
    np.testing.assert_array_equal(memory.vectors["q/online"], published[1]["q"])
    assert memory.version == 6
    assert any("died amid an update" in values["text"] for values in stage.values("log"))


@pytest.mark.parametrize("shards", [1, 3])
def test_the_last_shard_writes_checkpoints_of_all_that_a_run_goes_on_from(stage: Any, shards: int) -> None:
    batches = samples(DISCRETE, 8)
    rig = Rig(stage, DQN, DISCRETE, shards, (batches,))
    rig.run()
    for learner in rig.learners:
        learner.close()
    for server in rig.servers:
        server.close()
    found = checkpoint.load_latest(RunFolder(stage.context("x").folder).checkpoints)
    assert found is not None
    assert found.metadata["updates"] == 8
    alone = rig.agent()
    for batch in batches:
        alone.update(alone.prepare(batch))
    state = alone.state_dict()
    assert state.keys() == found.arrays.keys()
    for name in state.keys() - {"rng"}:
        np.testing.assert_array_equal(found.arrays[name], state[name], err_msg=name)

    more = samples(DISCRETE, 3, seed=9)
    resumed = Rig(stage, DQN, DISCRETE, 2, (more,))  # with another number of servers
    assert resumed.parameters.version == 9
    resumed.run()
    for batch in more:
        alone.update(alone.prepare(batch))
    assert_same(resumed.held(), alone)


def test_checkpoints_come_by_period(stage: Any) -> None:
    rig = Rig(stage, override(DQN, {"checkpoint_seconds": 1.0}), DISCRETE, 2, (samples(DISCRETE, 3),))
    for _ in range(3):
        rig.learners[0].step()
        rig.serve()
        stage.run.totals["env_steps"] += 1001  # a second of this clock
        rig.serve()
    assert [values["updates"] for values in stage.values("checkpoint")] == [1, 2, 3]


def test_policy_lag_counts_the_servers_updates(stage: Any) -> None:
    rig = Rig(stage, DQN, DISCRETE, 2, (samples(DISCRETE, 4),))
    rig.run()
    rig.learners[0].close()
    report = stage.values("metrics")[-1]
    assert report["run_lag"][0] == 1.5  # versions 1, 2, 3, 4 met steps of version 1
    assert report["updates"] == 4
    assert np.isfinite(report["values"]["loss"])
    assert report["values"]["gradient_lag"] == 0.0
    assert {f"agent/{name}" for name in report["values"]} <= KNOWN.keys()


def test_steps_that_are_too_old_are_not_learned_from(stage: Any) -> None:
    rig = Rig(stage, override(DQN, {"max_policy_lag": 1}), DISCRETE, 1, (samples(DISCRETE, 4),))
    rig.run()
    assert stage.run.totals["aged_steps"] == 2 * ROWS  # at versions 3 and 4, of version 1


def test_nothing_that_is_not_finite_is_sent(stage: Any) -> None:
    (batch,) = samples(DISCRETE, 1)
    batch.data["reward"][3] = np.inf
    rig = Rig(stage, DQN, DISCRETE, 1, ([batch],))
    before = rig.held()
    with pytest.raises(NonFiniteError, match=r"update 1 \(batch of 8 items, keys 0x0, .*No checkpoint was written yet"):
        rig.learners[0].step()
    rig.serve()
    assert rig.parameters.version == 1
    for name, value in rig.held().items():
        np.testing.assert_array_equal(value, before[name])


def test_parameters_are_published_when_nothing_waits_and_at_the_latest_by_period(stage: Any) -> None:
    feeds = tuple(samples(DISCRETE, 1, seed=seed) for seed in range(4))
    rig = Rig(stage, override(DQN, {"learners": 4, "publish_period_updates": 3}), DISCRETE, 1, feeds)
    for learner in rig.learners:
        assert learner.step()
    seen = []
    for _ in range(4):
        assert rig.servers[0].step()
        seen.append(rig.parameters.version)
    assert seen == [1, 1, 4, 5]


def test_crossq_has_more_than_gradients_change() -> None:
    crossq = override(agents.with_agent(Config(), "crossq"), {"hidden": (8,), "critic_hidden": (8,)}).agent
    assert places(agents.agent_class("crossq")(BOX, crossq, "cpu", 1)) == {}


def test_no_learner_begins_before_every_shard_has_published(stage: Any) -> None:
    rig = Rig(stage, DQN, DISCRETE, 2, (samples(DISCRETE, 1),))
    rig.parameters = ShardedParameters(rig.shards)
    learner = rig.learner(0)
    rig.server(0)
    assert not learner.step()
    rig.server(1)
    assert learner.step()
