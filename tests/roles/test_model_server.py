"""The model server with real environments: taking turns, and with its threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import NonFiniteError
from apexrl.launch.probe import probe
from apexrl.links.local.inference import InferenceLink
from apexrl.links.local.tunable_count import TunableCount
from apexrl.replay import Replay
from apexrl.roles import EnvWorker, ModelServer
from apexrl.roles.env_worker import reply_fields, request_fields, split_sizes
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import EnvSpec
from apexrl.topologies.replay_links import queue

WORKERS, ENVS, T = 2, 4, 8


def settings(**changes: Any) -> Config:
    small = {
        "env": "CartPole-v1",
        "topology": "ga3c",
        "hidden": (8,),
        "unroll_length": T,
        "batch_size": 6,
        "actors": WORKERS,
        "envs_per_actor": ENVS,
        "publish_period_updates": 2,
        "checkpoint_seconds": 1000.0,
    }
    return override(with_agent(Config(), "a2c"), {**small, **changes})


class House:
    """A model server and the environment workers that ask it, in one process."""

    def __init__(self, stage: Any, config: Config, patience: float = 0.0) -> None:
        self.stage, self.config, self.patience = stage, config, patience
        RunFolder(stage._folder).checkpoints.mkdir(parents=True, exist_ok=True)
        found = probe(config)
        self.spec: EnvSpec = found.spec
        self.link = InferenceLink.make(
            shared=False,
            request=request_fields(self.spec),
            reply=reply_fields(self.spec),
            workers=WORKERS,
            splits=split_sizes(ENVS, config.wiring.splits),
        )
        self.replay = Replay(**queue(config, found))
        self.weights = InlineWeights()
        self.knobs = {"predictors": TunableCount(2, shared=False), "trainers": TunableCount(2, shared=False)}
        self.server = self.new_server()
        self.workers = [
            EnvWorker(
                stage.context("env_worker", index, seed=index), config=config, spec=self.spec, inference=self.link
            )
            for index in range(WORKERS)
        ]

    def new_server(self) -> ModelServer:
        context = self.stage.context("model_server")
        context.patience = self.patience
        links = {"inference": self.link, "replay": self.replay, "weights": self.weights, **self.knobs}
        return ModelServer(context, config=self.config, spec=self.spec, **links)

    def run(self, until: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, "it never came about"
            for worker in self.workers:
                worker.step()
            self.server.step()

    def total(self, counter: str) -> int:
        return int(self.stage.run.totals[counter])

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        try:
            self.server.close()
        finally:
            self.replay.close()


@pytest.mark.parametrize("patience", [0.0, 0.02])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_every_step_is_learned_from_once_with_the_newest_model(stage: Any, patience: float, memory: str) -> None:
    house = House(stage, settings(memory=memory, recurrent_units=8), patience)
    house.run(lambda: house.total("updates") > 60)
    house.close()
    replay, said = house.replay.stats(), stage.values("metrics")
    assert replay["sampled"] == pytest.approx(house.total("env_steps") / T, rel=0.3)
    lags: dict[int, int] = said[-1]["run_lag_histogram"]
    learned = sum(lags.values())
    assert learned <= replay["sampled"] * T
    assert learned > 0.7 * replay["sampled"] * T  # final observations are no steps
    assert min(lags) >= 0
    assert house.weights.version == house.server._model.version == house.total("updates") + 1
    newest = house.weights.latest()
    found = checkpoint.load_latest(RunFolder(stage._folder).checkpoints)
    assert newest is not None
    assert found is not None
    for name, value in newest[1].items():
        np.testing.assert_array_equal(value, found.arrays[f"online/{name}"])
    sizes = [values["values"]["training_batch"] for values in said if "training_batch" in values["values"]]
    assert all(1 <= size <= 6 for size in sizes)
    assert all(1 <= values["batch"] <= WORKERS * ENVS for values in stage.values("inference"))


def test_the_number_of_threads_follows_the_knobs(stage: Any) -> None:
    house = House(stage, settings(), patience=0.02)
    threads = {crew._name: crew._threads for crew in house.server._crews}

    def alive() -> dict[str, int]:
        return {name: sum(thread is not None and thread.is_alive() for thread in of) for name, of in threads.items()}

    house.run(lambda: alive() == {"predictor": 2, "trainer": 2})
    for predictors, trainers in ((1, 3), (3, 1)):
        house.knobs["predictors"].value, house.knobs["trainers"].value = predictors, trainers
        wanted = {"predictor": predictors, "trainer": trainers}
        house.run(lambda wanted=wanted: alive() == wanted)
        updates = house.total("updates")
        house.run(lambda updates=updates: house.total("updates") > updates + 10)
    house.close()
    assert alive() == {"predictor": 0, "trainer": 0}


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of predictors, who act with such parameters first
@pytest.mark.parametrize("patience", [0.0, 0.02])
def test_an_error_in_a_thread_is_the_roles(stage: Any, patience: float) -> None:
    house = House(stage, settings(learning_rate=1e30, gradient_clip=0.0, optimizer="sgd"), patience)
    with pytest.raises(
        NonFiniteError, match=r"update \d+ \(batch of \d items, keys .* is NaN or infinite.*No checkpoin"
    ):
        house.run(lambda: False)
    if patience:
        with pytest.raises(NonFiniteError):  # who closes it all the same hears it again, after what could be saved was
            house.close()
        assert checkpoint.load_latest(RunFolder(stage._folder).checkpoints) is not None


def test_environments_wait_while_nobody_learns_and_go_on_afterwards(stage: Any) -> None:
    house = House(stage, settings(updates_per_second=0.001))

    def turns() -> int:
        steps = house.total("env_steps")
        for _ in range(20):
            for worker in house.workers:
                worker.step()
            house.server.step()
        return house.total("env_steps") - steps

    house.run(lambda: house.total("updates") == 1 and not turns())
    steps, waiting = house.total("env_steps"), len(house.replay)
    assert not turns()
    assert not house.server.step()
    assert house.total("updates") == 1
    assert 0 < waiting == len(house.replay)
    for _ in range(2):  # what waits to be written fills the place of the first at once
        assert house.replay.sample(6, timeout=0.0) is not None
    house.run(lambda: house.total("env_steps") > steps + 20)
    house.close()


def test_a_server_that_takes_a_dead_ones_place_learns_on(stage: Any) -> None:
    house = House(stage, settings(checkpoint_seconds=0.1))
    house.run(lambda: house.total("updates") > 30)
    version = house.weights.version
    house.server._asked._writers = [writer and writer.close() for writer in house.server._asked._writers]  # its lanes
    house.server = house.new_server()
    assert house.weights.version > version
    updates = house.total("updates")
    house.run(lambda: house.total("updates") > updates + 30)
    assert any("model_server-0 restored" in values["text"] for values in stage.values("log"))
    house.close()


def test_the_queue_is_kept_where_asked_for(stage: Any) -> None:
    house = House(stage, settings(save_replay=True, training_min_batch=6))
    house.run(lambda: house.total("updates") > 3)
    house.close()
    kept = Replay.load(RunFolder(stage._folder).replay_path)
    assert len(kept) == house.replay.stats()["size"] >= 0
    kept.close()
