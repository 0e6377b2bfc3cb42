"""Whole runs whose replay keeps images compressed: they are the same runs to the last bit, in less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.launch import launch
from apexrl.run import checkpoint
from apexrl.spec import PRESENT, TEAM, ActionSpec, EnvSpec, Field
from apexrl.topologies.program import Probe
from apexrl.topologies.replay_links import stored_fields
from apexrl.topologies.validation import validate


def run(topology: str, out: Path, agent: str = "dqn", **changes: Any) -> Config:
    return override(
        with_agent(Config(topology=topology), agent),
        {
            "env": "apexrl.envs.toy:Catch-v0", "serial": True, "out": str(out), "name": "run", "env_steps": 160,
            "actors": 1, "envs_per_actor": 4, "min_size": 64, "capacity": 120, "batch_size": 8, "updates_per_step": 0.2,
            "encoder": "shallow", "image_units": 16, "eval_episodes": 1, "eval_period_seconds": 1e6, "stack": 2,
            "learner_threads": 1, "seed": 3, **changes,
        },
    )  # fmt: skip


@pytest.mark.parametrize("topology", ["apex", "seed"])
def test_compression_changes_nothing_of_a_run(topology: str, tmp_path: Path) -> None:
    learned = []
    for compressed in (False, True):
        out = tmp_path / str(compressed)
        launch(run(topology, out, compress_images=compressed), [])
        found = checkpoint.load_latest(out / "run" / "checkpoints")
        assert found is not None
        learned.append(found.arrays)
    assert learned[0].keys() == learned[1].keys()
    for name, array in learned[0].items():
        np.testing.assert_array_equal(array, learned[1][name], err_msg=name)


def test_it_is_refused_where_there_is_no_image_and_where_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--compress-images: this environment shows no image"):
        launch(run("apex", tmp_path, env="CartPole-v1", stack=1, compress_images=True), [])
    with pytest.raises(ConfigError, match="compress-images"):
        validate(run("impala", tmp_path, agent="ppo", compress_images=True), ["compress_images"])


def test_of_a_team_what_each_agent_sees_is_an_image_or_none(tmp_path: Path) -> None:
    shown = {"picture": Field((2, 12, 12, 3), "uint8"), "bytes": Field((2, 5), "uint8")}
    fields = {**{f"{TEAM}/{name}": field for name, field in shown.items()}, PRESENT: Field((2,), "int8")}
    action = ActionSpec(shape=(2,), nvec=(3, 3), starts=(0, 0))
    config = run("apex", tmp_path, compress_images=True)
    kept = stored_fields(config, Probe(EnvSpec(fields, action), {}, 64))
    assert [name for name, field in kept.items() if field.compressed] == [f"{TEAM}/picture"]
