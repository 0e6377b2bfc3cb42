"""A dataset beside live actors: every topology that replays draws the share that was asked for, of either."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.datasets.filling import VERSION
from apexrl.errors import ConfigError
from apexrl.launch import launch
from apexrl.launch.probe import probe_learner
from apexrl.launch.wiring import Wiring
from apexrl.protocols import Item
from apexrl.replay import BatchServer
from apexrl.roles.policy_lag import AgeLimit, lags_with_dataset
from apexrl.topologies import host_cut, placements, topology
from apexrl.topologies.program import MixedLink

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))
from corridor_data import CORRIDOR, corridor_episodes, write_corridor

pytest.importorskip("minari")

CELLS: dict[str, dict[str, Any]] = {
    "apex": {},
    "apex, two learners": {"learners": 2},
    "seed": {"topology": "seed"},
    "gorila": {"topology": "gorila"},
    "gorila, own replays": {"topology": "gorila", "replay": "local", "learners": 2},
}
SMALL: dict[str, Any] = {
    "env": CORRIDOR,
    "hidden": (8,),
    "batch_size": 20,
    "actors": 2,
    "envs_per_actor": 2,
    "capacity": 2000,
    "min_size": 40,
    "updates_per_step": 0.25,
    "dataset_share": 0.25,
    "n_step": 2,
    "gamma": 0.9,
    "eval_episodes": 2,
    "eval_envs": 2,
    "stop_at_return": None,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_corridor(tmp_path_factory.mktemp("datasets") / "corridor", corridor_episodes(40)))


def config_of(dataset: str, cell: str, **changes: Any) -> Config:
    return override(with_agent(Config(), "dqn"), {**SMALL, "dataset": dataset, **CELLS[cell], **changes})


@pytest.mark.parametrize("cell", CELLS)
def test_every_batch_has_its_share_of_both(dataset: str, cell: str, tmp_path: Path) -> None:
    config = config_of(dataset, cell, alpha=0.6, updates_per_step=0.0)
    program = topology(config.topology)(config, probe_learner(config))
    with closing(Wiring(program, False, tmp_path / "none")) as wiring:
        learner = next(node for node in program.nodes if "learner" in node.name)
        writer = next(node for node in program.nodes if node.name in ("actor", "inference_server"))
        ports, theirs = wiring.ports(learner), wiring.ports(writer)
        live = next(theirs[name] for name in ("replay", "queue_0") if name in theirs)
        source = next(ports[name] for name in ("replay", "queue_0", "batches") if name in ports)
        source = source.replay if isinstance(source, BatchServer) else source
        with live.writer(streams=1) as acting:
            names = {column.name: column.field for column in live.core.layout.columns}
            for step in range(150):
                values: dict[str, Any] = {name: np.zeros((1, *f.shape), f.dtype) for name, f in names.items()}
                values |= {"reward": np.ones(1, np.float32), "truncated": np.zeros(1, np.bool_)}
                values |= {"terminated": np.array([step % 10 == 8])}
                acting.append(values)
        batch = source.sample(20)
        recorded = batch.data["version"] == VERSION
        assert recorded.sum() == 5
        assert (batch.data["reward"][~recorded] > 0.9).all()  # of the live ones every step pays 1
        assert (batch.weights == 1.0).all()  # all have the same priority, in either
        wanted = np.where(recorded, 5.0, 1.0).astype(np.float32)
        assert source.update_priorities(batch.keys, wanted).applied == 20
        heavy = source.sample(20)
        assert (heavy.data["version"] == VERSION).sum() == 5  # priorities choose within a replay, and not between two
        assert wiring.replay_stats()["size"] < 200  # what a dataset holds is not what actors brought


def test_a_dataset_has_no_lag_and_no_age() -> None:
    rows = {"version": np.array([7, VERSION, 3, VERSION])}
    batch: Any = SimpleNamespace(data=rows, weights=np.ones(4, np.float32))
    lags, aged = lags_with_dataset(batch, 10, Item())
    assert (lags.tolist(), aged) == ([3, 7], 0)
    fresh = AgeLimit(5, 10, Item())(batch)
    assert fresh.tolist() == [True, True, False, True]
    assert batch.weights.tolist() == [1.0, 1.0, 0.0, 1.0]
    lags, aged = lags_with_dataset(batch, 10, Item(), fresh)
    assert (lags.tolist(), aged) == ([3], 1)


@pytest.mark.parametrize("cell", ["apex", *(pytest.param(c, marks=pytest.mark.long) for c in list(CELLS)[1:])])
def test_whole_runs_keep_the_pace_of_updates(dataset: str, cell: str, tmp_path: Path) -> None:
    changes = {"out": str(tmp_path), "name": "run", "serial": True, "env_steps": 1500, "eval_period_seconds": 0.1}
    summary = launch(config_of(dataset, cell, **changes))
    assert summary["env_steps"] >= 1500
    learners = 2 if "two" in cell else 1  # who make each update together
    assert summary["samples_per_insert"] == pytest.approx(0.25 * 20 * 0.75 * learners, rel=0.25)
    assert summary["updates"] > 200


def test_over_hosts_the_mix_holds_what_the_intake_writes(dataset: str) -> None:
    config = host_cut.with_slots(config_of(dataset, "apex"))
    program = topology("apex")(config, probe_learner(config))
    assert host_cut.replay_of(program) is not None
    side = host_cut.learner_side(program, {})
    ports = {node.name: node.ports for node in side.nodes}
    mixed = ports["learner"]["replay"]
    assert isinstance(mixed, MixedLink)
    assert mixed.replay is ports["intake"]["queue_0"]
    assert mixed.replay.options["writers"] == 1


def test_ray_and_a_dataset_do_not_go_together(dataset: str) -> None:
    with pytest.raises(ConfigError, match="--dataset does not go with --ray"):
        placements.check(config_of(dataset, "apex"), "ray")
    placements.check(config_of(dataset, "apex"), "redis")
