"""A3C's workers and their keeper, in turn on one set of parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from apexrl.agents import agent_class, with_agent
from apexrl.agents.named_vectors import Vectors, bind, sizes, vectors
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.envs import make_vector
from apexrl.errors import NonFiniteError
from apexrl.links.local.shared_parameters import SharedParameters
from apexrl.protocols import STATISTICS, is_optimizer_state
from apexrl.replay import Batch
from apexrl.roles import A3CWorker, ParameterKeeper
from apexrl.run import checkpoint
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import EnvSpec

LENGTH, ENVS = 4, 2
SMALL: dict[str, Any] = {
    "topology": "a3c",
    "hidden": (8,),
    "unroll_length": LENGTH,
    "envs_per_actor": ENVS,
    "actors": 2,
    "optimizer": "rmsprop",
    "publish_period_updates": 3,
}


def config_of(**changes: Any) -> Config:
    return override(with_agent(Config(), "a2c"), SMALL | changes)


def spec_of(config: Config) -> EnvSpec:
    env = make_vector(config.env, 1, 0)
    env.close()
    return env.spec


class Update:
    """What one worker learned from, and how."""

    def __init__(self, copy: Vectors, batch: Batch, gradient: dict[str, Any]) -> None:
        self.copy = copy
        self.batch = batch
        self.gradient = gradient


class Run:
    """A keeper and workers over one set of parameters; every update is noted, in the order in which it was applied."""

    def __init__(self, stage: Any, config: Config, workers: int = 2) -> None:
        self.stage, self.config, self.spec = stage, config, spec_of(config)
        shared = {
            name: size
            for name, size in sizes(self.agent()).items()
            if config.wiring.shared_statistics or not is_optimizer_state(name)
        }
        self.parameters = SharedParameters(shared, shared=False)
        self.weights = InlineWeights()
        self.workers = [self.worker(index) for index in range(workers)]
        self.updates: list[Update] = []
        for worker in self.workers:
            self._note(worker)

    def agent(self) -> Any:
        return agent_class("a2c")(self.spec, self.config.agent, "cpu", 3)

    def worker(self, index: int) -> A3CWorker:
        context = self.stage.context("worker", index, seed=index)
        return A3CWorker(context, config=self.config, spec=self.spec, parameters=self.parameters)

    def keeper(self, seed: int = 1) -> ParameterKeeper:
        context = self.stage.context("parameter_server", seed=seed)
        return ParameterKeeper(
            context, config=self.config, spec=self.spec, parameters=self.parameters, weights=self.weights
        )

    def turns(self, count: int) -> None:
        for _ in range(count):
            for worker in self.workers:
                assert worker.step()

    def now(self) -> Vectors:
        return {name: array.copy() for name, array in self.parameters.arrays.items()}

    def _note(self, worker: A3CWorker) -> None:
        gradients: Callable[[Any], Any] = worker._agent.gradients
        prepare: Callable[[Any], Any] = worker._agent.prepare

        def noted_prepare(batch: Batch) -> Any:
            data = {name: np.array(value) for name, value in batch.data.items()}
            self._batch = Batch(data, batch.keys, batch.probabilities, batch.weights)
            return prepare(batch)

        def noted(prepared: Any) -> Any:
            found = gradients(prepared)
            copy = {name: vector.copy() for name, vector in vectors(worker._agent).items() if STATISTICS not in name}
            gradient = {group: value.clone() for group, value in found.groups.items()}
            self.updates.append(Update(copy, self._batch, gradient))
            return found

        worker._agent.prepare, worker._agent.gradients = noted_prepare, noted


def equal(one: Vectors, two: Vectors) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(vector, two[name]) for name, vector in one.items())


def test_workers_wait_for_the_first_parameters(stage: Any) -> None:
    run = Run(stage, config_of())
    assert not run.workers[0].step()
    assert stage.run.totals["env_steps"] == 0
    run.keeper()
    run.turns(1)
    assert stage.run.totals["env_steps"] == 2 * ENVS


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "sgd", "adagrad"])
def test_updates_in_place_are_those_that_one_agent_would_make(stage: Any, optimizer: str) -> None:
    run = Run(stage, config_of(optimizer=optimizer))
    run.keeper()
    alone = run.agent()
    bind(alone, run.now())  # a copy of the parameters, and of nobody else
    run.workers[1].step()  # so that they do not copy, and learn, in the same turns
    run.workers[1].step()
    run.turns(60)
    assert len(run.updates) == stage.run.totals["updates"] >= 28
    for update in run.updates:
        taker = run.agent()
        bind(taker, update.copy, statistics=False)
        again = taker.gradients(taker.prepare(update.batch)).groups
        assert {group: value.tolist() for group, value in again.items()} == {
            group: value.tolist() for group, value in update.gradient.items()
        }
        alone.apply(update.gradient)
    assert equal(vectors(alone), run.now())


def test_a_copy_holds_for_one_unroll(stage: Any) -> None:
    run = Run(stage, config_of())
    run.keeper()
    run.turns(LENGTH - 1)
    first = run.now()
    run.workers[0].step()
    assert stage.run.totals["updates"] == 1
    assert not equal(first, run.now())
    run.workers[1].step()  # its copy is from before
    one, two = run.updates
    assert equal(one.copy, two.copy)
    assert all(np.array_equal(vector, first[name]) for name, vector in one.copy.items())
    after = run.now()
    run.turns(LENGTH)
    assert all(np.array_equal(vector, after[name]) for name, vector in run.updates[2].copy.items())


def test_steps_carry_the_version_of_the_copy_and_lag_counts_the_others(stage: Any) -> None:
    run = Run(stage, config_of())
    run.keeper()
    run.turns(5 * LENGTH)
    versions = [set(update.batch.data["version"].flatten().tolist()) for update in run.updates]
    assert versions == [{1}, {1}, {3}, {3}, {5}, {5}, {7}, {7}, {9}, {9}]
    for worker in run.workers:
        worker.close()
    one, two = (values for values in stage.values("metrics") if values["updates"] == 10)
    real = [int(sum(update.batch.data["mask"].sum() for update in run.updates[which::2])) for which in (0, 1)]
    assert one["run_lag_histogram"] == {0: real[0]}
    assert two["run_lag_histogram"] == {1: real[1]}
    assert two["run_lag"] == [1.0, 1.0, 1.0]


def test_workers_share_the_optimizers_statistics_or_have_their_own(stage: Any, make_stage: Any) -> None:
    for shared, run in (
        (True, Run(stage, config_of())),
        (False, Run(make_stage(), config_of(shared_statistics=False))),
    ):
        run.keeper()
        run.turns(3 * LENGTH)
        one, two = (vectors(worker._parameters._twin) for worker in run.workers)
        for name, vector in one.items():
            together = shared or STATISTICS not in name
            assert (name in run.parameters.arrays) == together
            assert np.shares_memory(vector, two[name]) == together
        (steps,) = (name for name in one if name.endswith("/steps"))
        assert one[steps].tolist() == [6.0 if shared else 3.0]
        assert any(name.endswith("/square_average") for name in one)


def test_what_is_not_finite_ends_the_run_and_leaves_the_parameters(stage: Any, monkeypatch: Any) -> None:
    run = Run(stage, config_of())
    run.keeper()
    run.turns(LENGTH)
    before = run.now()

    def sick(prepared: Any) -> Any:
        raise NonFiniteError("update 2: the gradient is NaN or infinite; the parameters were left as they were")

    monkeypatch.setattr(run.workers[1]._agent, "gradients", sick)
    run.turns(LENGTH - 1)
    with pytest.raises(NonFiniteError, match=r"an unroll of version 3: .*No checkpoint .*--learning-rate"):
        run.workers[1].step()
    assert equal(before, run.now())
    assert stage.run.totals["updates"] == 2


def test_a_memory_goes_on_from_unroll_to_unroll_and_is_recorded(stage: Any) -> None:
    run = Run(stage, config_of(memory="lstm", recurrent_units=5), workers=1)
    run.keeper()
    run.turns(4 * LENGTH)
    states = [update.batch.data["lstm_h"] for update in run.updates]
    assert [state.shape for state in states] == [(ENVS, 5)] * 4
    assert not states[0].any()
    assert all(state.any() for state in states[1:])  # no episode of CartPole is as short


def test_environments_in_threads_go_in_step(stage: Any) -> None:
    run = Run(stage, config_of(vector="threads"), workers=1)
    run.keeper()
    (worker,) = run.workers
    stage_turns = 0
    while stage.run.totals["updates"] < 3:
        assert worker.step()
        stage_turns += 1
        assert stage_turns < 100_000
    assert stage.run.totals["env_steps"] <= 3 * LENGTH * ENVS
    assert [update.batch.data["mask"].shape for update in run.updates] == [(ENVS, LENGTH)] * 3
    worker.close()


def test_finished_episodes_are_reported(stage: Any) -> None:
    run = Run(stage, config_of(), workers=1)
    run.keeper()
    run.turns(300)
    run.workers[0].close()
    lengths = [length for values in stage.values("episodes") for length in values["lengths"]]
    assert len(lengths) == stage.run.totals["episodes"] > 5
    rows = 300 * ENVS  # of which as many were final observations as episodes were begun again
    assert rows >= stage.run.totals["env_steps"] >= max(sum(lengths), rows - len(lengths))


# The keeper


def test_the_keeper_publishes_at_once_and_then_as_updates_come(stage: Any) -> None:
    run = Run(stage, config_of())
    keeper = run.keeper()
    assert run.weights.version == 1
    stage.run.totals["env_steps"] += 1000  # a second
    run.turns(LENGTH)
    assert not keeper.step()  # two updates
    run.turns(LENGTH)
    assert keeper.step()
    assert run.weights.version == 5
    newest = run.weights.latest()
    assert newest is not None
    fresh = run.agent()
    fresh.load(newest[1])
    assert all(np.array_equal(vector, run.now()[n]) for n, vector in vectors(fresh).items() if n.endswith("/online"))
    run.turns(2 * LENGTH)
    assert not keeper.step()  # not so soon again
    stage.run.totals["env_steps"] += 1000
    assert keeper.step()
    assert run.weights.version == 9
    assert stage.run.totals["published"] == 3


def test_a_run_is_saved_and_gone_on_with(stage: Any, make_stage: Any) -> None:
    run = Run(stage, config_of())
    keeper = run.keeper()
    run.turns(5 * LENGTH)
    keeper.close()
    (saved,) = stage.values("checkpoint")
    found = checkpoint.load_latest(stage.context("x").folder / "checkpoints")
    assert found is not None
    assert saved["updates"] == found.metadata["updates"] == int(found.arrays["updates"]) == 10
    assert found.metadata["env_steps"] == stage.run.totals["env_steps"]

    later = make_stage()
    later.run.totals["updates"] = 10
    resumed = Run(later, config_of())
    resumed.keeper(seed=5)
    layout = run.agent()._network.parameters  # between parameters there may be gaps, which no checkpoint holds
    before, after = run.now(), resumed.now()
    for name, vector in after.items():
        if name.endswith("/steps"):
            assert vector == before[name]
        else:  # statistics too
            assert equal(*(layout.arrays(torch.from_numpy(one)) for one in (vector, before[name])))
    assert resumed.weights.version == 11
    resumed.turns(LENGTH)
    assert later.run.totals["updates"] == 12


def test_checkpoints_are_written_now_and_then(stage: Any) -> None:
    run = Run(stage, config_of(checkpoint_seconds=0.1))
    keeper = run.keeper()
    keeper.step()
    assert stage.values("checkpoint") == []
    for _ in range(3):
        run.turns(LENGTH)
        stage.run.totals["env_steps"] += 100
        keeper.step()
        keeper.step()
    assert [values["updates"] for values in stage.values("checkpoint")] == [2, 4, 6]


def test_a_keeper_that_takes_a_dead_ones_place_goes_on_from_the_shared_parameters(stage: Any) -> None:
    run = Run(stage, config_of())
    run.keeper()
    run.turns(LENGTH)
    before = run.now()
    successor = run.keeper(seed=99)
    assert equal(before, run.now())
    assert run.weights.version == 3
    newest = run.weights.latest()
    assert newest is not None
    run.turns(LENGTH)
    stage.run.totals["env_steps"] += 1000
    successor.close()
    assert run.weights.version == 5
    assert [values["text"] for values in stage.values("log")] == ["parameter_server-0 took up the shared parameters"]


def test_a_keeper_that_finds_nothing_new_publishes_nothing(stage: Any) -> None:
    run = Run(stage, config_of())
    run.keeper()
    run.keeper()
    assert run.weights.version == stage.run.totals["published"] == 1


def test_each_updates_count_is_the_runs(stage: Any) -> None:
    run = Run(stage, replace(config_of(), seed=4))
    keeper = run.keeper()
    run.turns(2 * LENGTH)
    keeper.close()
    assert all(worker._agent.updates == worker._parameters._twin.updates == 2 for worker in run.workers)
    found = checkpoint.load_latest(stage.context("x").folder / "checkpoints")
    assert found is not None
    assert int(found.arrays["updates"]) == 4
