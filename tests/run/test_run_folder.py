from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from apexrl.config import Config, EnvConfig
from apexrl.errors import ConfigError, SnapshotError
from apexrl.run.folder import RunFolder, default_name, make_summary, versions
from apexrl.run.spec_json import spec_from_json, spec_to_json
from apexrl.run.status import PolicyLag, RunStatus
from apexrl.spec import ActionSpec, EnvSpec, Field
from new_folders import new_folder

PROMISED = {
    "preset",
    "topology",
    "agent",
    "env",
    "seed",
    "env_steps",
    "updates",
    "wall_seconds",
    "startup_seconds",
    "env_steps_per_second",
    "updates_per_second",
    "samples_per_insert",
    "updates_per_step",
    "policy_lag",
    "best_eval_return",
    "final_eval_return",
    "final_eval_episodes",
    "stopped_by",
    "restarts",
    "dropped",
    "versions",
}


def test_create_and_open(tmp_path: Path) -> None:
    config = Config(preset="cartpole", out=str(tmp_path / "deep" / "runs"), name="first", seed=7)
    folder = new_folder(config)
    assert folder.path == tmp_path / "deep" / "runs" / "first"
    assert RunFolder.open(folder.path).config() == config
    assert "apexrl train config.toml" in folder.config_path.read_text()
    assert folder.summary() == {}


def test_an_existing_run_is_never_touched(tmp_path: Path) -> None:
    config = Config(out=str(tmp_path), name="same")
    folders = [new_folder(config).path.name for _ in range(3)]
    assert folders == ["same", "same-2", "same-3"]


def test_default_names(tmp_path: Path) -> None:
    assert default_name(Config(preset="slow-cartpole")).startswith("slow-cartpole-2")
    assert default_name(Config(env=EnvConfig(env="my.module:Plant-v0"))).startswith("plant-v0-2")
    assert default_name(Config(env=EnvConfig(env="ALE/Pong-v5"))).startswith("ale-pong-v5-2")
    assert default_name(Config(env=EnvConfig(env=lambda: None))).split("-2")[0].endswith("lambda")
    for config in (Config(env=EnvConfig(env="ALE/Pong-v5")), Config(env=EnvConfig(env=lambda: None))):
        new_folder(Config(env=config.env, out=str(tmp_path)))


def test_out_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name, what in {"file": "a file", "link": "a link to what is not there"}.items():
        with pytest.raises(ConfigError, match=f"cannot write a run folder in --out .*{name}: it is {what}"):
            new_folder(Config(out=str(tmp_path / name)))
    with pytest.raises(ConfigError, match="no home folder is known for ~nobody-of-this-name"):
        new_folder(Config(out="~nobody-of-this-name/runs"))


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    new_folder(Config(out=str(tmp_path), name="cartpole-1"))
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"there is no such folder. \(did you mean 'cartpole-1'\?\)"):
        RunFolder.open(tmp_path / "cartpole-2")
    with pytest.raises(ConfigError, match=r"holds no config.toml. Runs in .*: cartpole-1"):
        RunFolder.open(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"holds no config.toml. Runs in .*: cartpole-1"):
        RunFolder.open(tmp_path)
    (tmp_path / "folder" / "config.toml").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"its config.toml is a folder. Runs in .*: cartpole-1$"):
        RunFolder.open(tmp_path / "folder")
    with pytest.raises(ConfigError, match=r"config.toml is a file: give the folder of a run, as .*cartpole-1$"):
        RunFolder.open(tmp_path / "cartpole-1" / "config.toml")


def test_a_damaged_summary_says_what_to_do(tmp_path: Path) -> None:
    folder = new_folder(Config(out=str(tmp_path), name="cut"))
    assert folder.summary() == {}
    folder.summary_path.write_text('{"stopped_by": "minu')
    with pytest.raises(SnapshotError, match=r"summary.json cannot be read .*: delete it, and the run counts as one"):
        folder.summary()


@pytest.mark.parametrize("text", ["", "\n", "# Written by apexrl\n\n"])
def test_settings_that_are_gone_are_not_taken_for_the_default_ones(text: str, tmp_path: Path) -> None:
    folder = new_folder(Config(out=str(tmp_path), name="cut"))
    folder.config_path.write_text(text)
    with pytest.raises(ConfigError, match=r"cut/config.toml holds no setting"):
        folder.config()


def test_summary_has_what_is_promised(tmp_path: Path) -> None:
    status = RunStatus(
        elapsed_seconds=20.0,
        startup_seconds=2.5,
        env_steps=1000,
        updates=100,
        samples_per_insert=8.0,
        policy_lag=PolicyLag(1.0, 2.0, 3.0),
        lag_histogram={0: 2, 3: 1},
        best_eval_return=500.0,
        restarts={"actor": 1},
        dropped={"messages": 2},
    )
    summary = make_summary(
        Config(preset="cartpole", seed=3),
        status,
        stopped_by="stop_at_return",
        finals={"best": {"mean": 499.0, "episodes": 20}, "last": {"mean": 480.0, "episodes": 20}},
    )
    assert set(summary) >= PROMISED
    assert (summary["env_steps_per_second"], summary["updates_per_second"]) == (50.0, 5.0)
    lag = {"mean": 1.0, "p95": 2.0, "max": 3.0, "steps": 3, "histogram": {"0": 2, "3": 1}}
    assert summary["policy_lag"] == lag
    assert summary["restarts"] == {"actor": 1}
    assert (summary["env"], summary["agent"], summary["topology"]) == ("CartPole-v1", "dueling_dqn", "apex")

    folder = new_folder(Config(out=str(tmp_path)))
    folder.write_summary(summary)
    assert folder.summary() == summary


def test_a_run_that_never_began_has_a_summary(tmp_path: Path) -> None:
    summary = make_summary(Config(), RunStatus(), stopped_by="error", error="the env raised")
    folder = new_folder(Config(out=str(tmp_path)))
    folder.write_summary(summary)
    written = json.loads(folder.summary_path.read_text())
    assert written["env_steps_per_second"] == 0.0
    assert written["policy_lag"] == {"mean": None, "p95": None, "max": None, "steps": 0, "histogram": {}}
    assert written["error"] == "the env raised"


def test_numpy_values_and_infinities_become_json(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_summary({"a": np.float32(1.5), "b": [math.inf, np.int64(3)], "c": {"d": math.nan}})
    assert folder.summary() == {"a": 1.5, "b": [None, 3], "c": {"d": None}}
    folder.summary_path.write_text("[1]")
    with pytest.raises(SnapshotError, match="does not hold a JSON object"):
        folder.summary()
    folder.summary_path.write_text("{")
    with pytest.raises(SnapshotError, match="cannot be read"):
        folder.summary()


def test_versions_without_importing() -> None:
    assert set(versions()) == {"apexrl", "python", "torch", "numpy", "gymnasium"}
    assert versions()["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    "spec",
    [
        EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2)),
        EnvSpec({"observation": Field((84, 84), "uint8")}, ActionSpec(n=3, start=5), stack=4),
        EnvSpec(
            {"observation/a": Field((), "int64"), "observation/b/c": Field((2, 3), "int8")},
            ActionSpec((2,), "float32", low=np.array([-1, -np.inf], "f4"), high=np.array([1, np.inf], "f4")),
            categories={"observation/a": 7},
            starts={"observation/a": -2},
        ),
        EnvSpec({"observation": Field((4,), "float32")}, ActionSpec((2,), nvec=(2, 3), starts=(0, -1))),
    ],
)
def test_spec_round_trip(tmp_path: Path, spec: EnvSpec) -> None:
    folder = RunFolder(tmp_path)
    assert folder.spec() is None
    folder.write_spec(spec)
    again = folder.spec()
    assert again is not None
    assert spec_to_json(again) == spec_to_json(spec) == json.loads(json.dumps(spec_to_json(spec), allow_nan=False))
    assert again.observation == spec.observation
    assert (again.action.shape, again.action.nvec, again.action.starts) == (
        spec.action.shape,
        spec.action.nvec,
        spec.action.starts,
    )
    assert (again.stack, again.categories, again.starts) == (spec.stack, spec.categories, spec.starts)
    if spec.action.low is not None:
        assert again.action.low is not None
        assert again.action.low.dtype == np.float32
        np.testing.assert_array_equal(again.action.low, spec.action.low)


def test_a_spec_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "env_spec.json").write_text('{"observation": {}}')
    with pytest.raises(SnapshotError, match="does not describe an environment"):
        RunFolder(tmp_path).spec()
    with pytest.raises(KeyError):
        spec_from_json({})
