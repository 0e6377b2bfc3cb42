"""A3C through parameter servers: the update that Hogwild makes of the same gradients, and workers who send theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from apexrl.agents import agent_class, with_agent
from apexrl.agents.named_vectors import sizes, vectors
from apexrl.agents.parameter_layout import places
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.links.local.gradient_ring import GradientLink
from apexrl.links.local.parameter_slices import ParameterSlices
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.links.local.shared_parameters import SharedParameters
from apexrl.roles import A3CWorker, ParameterServer
from apexrl.roles.hogwild import HogwildParameters
from apexrl.roles.parameter_client import ParameterClient
from apexrl.spec import ActionSpec, EnvSpec, Field

SPEC = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2))
LENGTH, ENVS = 4, 2
SMALL: dict[str, Any] = {"topology": "a3c", "hogwild": False, "hidden": (24, 24), "unroll_length": LENGTH}


def config_of(**changes: Any) -> Config:
    return override(with_agent(Config(), "a2c"), {**SMALL, "envs_per_actor": ENVS, "actors": 2, **changes})


class Run:
    """Servers of an agent's parameters, and workers that send to them."""

    def __init__(self, stage: Any, config: Config, shards: int, senders: int = 1) -> None:
        self.stage, self.config = stage, config
        agent = self.agent()
        self.shards = ParameterSlices(sizes(agent), places(agent), shards)
        self.parameters = ShardedParameters(self.shards)
        self.gradients = GradientLink(self.shards, senders)
        self.ports: dict[str, Any] = {
            "config": config,
            "spec": SPEC,
            "parameters": self.parameters,
            "gradients": self.gradients,
        }
        contexts = [stage.context("parameter_server", shard) for shard in range(shards)]
        self.servers = [ParameterServer(context, **self.ports) for context in contexts]

    def agent(self) -> Any:
        return agent_class("a2c")(SPEC, self.config.agent, "cpu", self.config.seed)

    def worker(self, index: int) -> A3CWorker:
        return A3CWorker(self.stage.context("worker", index, seed=index + 5), **self.ports)

    def serve(self) -> None:
        for server in self.servers:
            while server.step():
                pass

    def held(self) -> dict[str, Any]:
        found = {name: np.zeros(size, np.float32) for name, size in self.shards.vectors.items()}
        self.parameters.collect(found)
        return found


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "sgd", "adagrad"])
def test_hogwild_and_servers_make_the_same_update_of_the_same_gradients(
    stage: Any, make_stage: Any, optimizer: str, shards: int
) -> None:
    run = Run(stage, config_of(optimizer=optimizer, momentum=0.3), shards)
    through = run.agent()
    servers = ParameterClient(through, run.parameters, run.gradients, 0)
    copy, twin = run.agent(), run.agent()
    shared = SharedParameters(run.shards.vectors, shared=False)
    shared.fill(vectors(twin))
    in_place = HogwildParameters(make_stage().context("worker"), copy, twin, shared, statistics=True)

    random = torch.Generator().manual_seed(3)
    for update in range(8):
        for side in (servers, in_place):
            assert side.pull()
            assert side.version == update + 1
            assert side.sent
        for name, value in vectors(copy).items():
            if name.endswith("/online"):
                np.testing.assert_array_equal(vectors(through)[name], value)
        size = run.shards.groups["policy_value"]
        gradient = {"policy_value": torch.randn(size, generator=random)}
        assert servers.send(gradient, 0.0)
        assert in_place.send(gradient, 0.0)
        run.serve()
        assert servers.newest == in_place.newest == update + 2
    held = run.held()
    assert held.keys() == shared.arrays.keys()
    for name, value in shared.arrays.items():
        np.testing.assert_array_equal(held[name], value, err_msg=name)


def test_workers_act_with_what_servers_published_and_send_their_gradients(stage: Any) -> None:
    run = Run(stage, config_of(), shards=2, senders=2)
    workers = [run.worker(index) for index in range(2)]
    for _ in range(10 * LENGTH):
        for worker in workers:
            assert worker.step()
        run.serve()
    assert stage.run.totals["updates"] == run.parameters.version - 1 == 20
    before, after = vectors(run.agent()), run.held()
    assert all(np.isfinite(value).all() for value in after.values())
    assert not np.array_equal(before["policy_value/online"], after["policy_value/online"])
    for worker in workers:
        worker.close()
    one, two = (values for values in stage.values("metrics") if values["updates"] == 20)
    assert one["run_lag"][2] == two["run_lag"][2] == 0.0  # in lock-step each sends before a server takes either's


def test_a_worker_whose_servers_are_behind_waits_and_loses_nothing(stage: Any) -> None:
    run = Run(stage, config_of(), shards=2)
    worker = run.worker(0)
    turns = [worker.step() for _ in range(3 * LENGTH + 3)]
    assert turns == [True] * (3 * LENGTH) + [False] * 3  # two gradients wait, the third is under way
    assert stage.run.totals["updates"] == 0
    run.serve()
    assert worker.step()
    run.serve()
    assert stage.run.totals["updates"] == 3
    assert run.parameters.version == 4


def test_workers_wait_for_the_first_parameters(stage: Any) -> None:
    run = Run(stage, config_of(), shards=1)
    run.ports["parameters"] = ShardedParameters(run.shards)
    assert not run.worker(0).step()
    assert stage.run.totals["env_steps"] == 0
