"""Runs that begin with the weights of another run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from recording_observer import Watcher

import apexrl
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ApexrlError, ConfigError, SpecError
from apexrl.launch import launch
from apexrl.launch.probe import probe_beginning, probe_learner
from apexrl.presets import with_topology
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.topologies.validation import validate

SMALL: dict[str, Any] = {
    "hidden": (16,),
    "actors": 1,
    "envs_per_actor": 2,
    "unroll_length": 8,
    "batch_size": 8,
    "min_size": 16,
    "eval_episodes": 1,
    "eval_envs": 1,
    "checkpoint_seconds": 1000.0,
    "serial": True,
}


def config_for(tmp_path: Path, name: str, topology: str = "apex", **changes: Any) -> Config:
    chosen = with_topology(override(Config(), {"out": str(tmp_path), "name": name, "env": "CartPole-v1"}), topology)
    return override(chosen, {**SMALL, **changes})


def source(tmp_path: Path, topology: str = "apex") -> Path:
    launch(config_for(tmp_path, "source", topology, updates=5, eval_period_steps=20))
    return tmp_path / "source"


@pytest.mark.parametrize(
    ("topology", "changes"),
    [
        ("apex", {}),
        ("gorila", {}),
        ("impala", {}),
        ("sample_factory", {}),
        ("a3c", {}),
        ("a3c", {"hogwild": False}),
        ("ga3c", {}),
    ],
)
def test_every_topology_begins_with_them(tmp_path: Path, topology: str, changes: dict[str, Any]) -> None:
    run = source(tmp_path, topology)
    given = {"initial_weights": str(run), "updates": 1, "learning_rate": 1e-12, **changes}
    launch(config_for(tmp_path, "tuned", topology, **given))
    begun = checkpoint.load_latest(RunFolder(tmp_path / "tuned").checkpoints)
    best = checkpoint.best(RunFolder(run).checkpoints)
    assert begun is not None
    assert best is not None
    for name, value in checkpoint.load(best).arrays.items():
        assert np.allclose(begun.arrays[f"online/{name}"], value, atol=1e-6), name
    assert int(begun.metadata["updates"]) == 1


def test_a_target_network_begins_with_them_too(tmp_path: Path) -> None:
    run = source(tmp_path)
    launch(config_for(tmp_path, "tuned", initial_weights=str(run), updates=1, learning_rate=1e-12))
    begun = checkpoint.load_latest(RunFolder(tmp_path / "tuned").checkpoints)
    assert begun is not None
    targets = {name: value for name, value in begun.arrays.items() if name.startswith("target/")}
    assert targets
    assert all(np.allclose(value, begun.arrays[name.replace("target/", "online/")]) for name, value in targets.items())


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        (
            {"hidden": (8,)},
            SpecError,
            r"best\.safetensors does not fit agent dueling_dqn: weights are of another network",
        ),
        (
            {"env": "Acrobot-v1"},
            SpecError,
            r"does not fit agent dueling_dqn.*forms of observations and actions must be",
        ),
    ],
)
def test_other_networks_are_refused_before_anything_is_made(
    tmp_path: Path, changes: dict[str, Any], error: type[ApexrlError], text: str
) -> None:
    run = source(tmp_path)
    with pytest.raises(error, match=text):
        probe_beginning(config_for(tmp_path, "tuned", initial_weights=str(run), **changes))


def test_what_holds_no_weights_is_refused(tmp_path: Path) -> None:
    run = source(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no such run folder or \.safetensors file"):
        probe_beginning(config_for(tmp_path, "tuned", initial_weights=str(tmp_path / "nothing")))
    with pytest.raises(ConfigError, match=r"no such run folder or \.safetensors file"):
        probe_beginning(config_for(tmp_path, "tuned", initial_weights=str(run / "config.toml")))
    with pytest.raises(ConfigError, match=r"--initial-weights s3://bucket/run is a URL: copy the run to this machine"):
        probe_beginning(config_for(tmp_path, "tuned", initial_weights="s3://bucket/run"))
    assert probe_beginning(config_for(tmp_path, "tuned", initial_weights=str(run / "checkpoints"))).weights_nbytes > 0
    state = checkpoint.latest(RunFolder(run).checkpoints)
    with pytest.raises(ConfigError, match=r"a learner's whole state: give best\.safetensors, or its run"):
        probe_beginning(config_for(tmp_path, "tuned", initial_weights=str(state)))
    best = checkpoint.best(RunFolder(run).checkpoints)
    assert best is not None
    assert probe_beginning(config_for(tmp_path, "tuned", initial_weights=str(best))).weights_nbytes > 0
    best.unlink()
    with pytest.raises(ConfigError, match="there are no best weights in"):
        probe_beginning(config_for(tmp_path, "tuned", initial_weights=str(run)))


def test_more_weights_than_the_network_has_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "source"
    launch(config_for(tmp_path, "source", updates=5, eval_period_steps=20, normalize_observations=True))
    with pytest.raises(SpecError, match=r"does not fit agent dueling_dqn: it has 'normalizer/.* more, unknown here"):
        probe_beginning(config_for(tmp_path, "tuned", initial_weights=str(run)))


def test_a_run_is_resumed_without_them(tmp_path: Path) -> None:
    run = source(tmp_path)
    launch(config_for(tmp_path, "tuned", initial_weights=str(run), updates=3))
    shutil.rmtree(run)
    config = config_for(tmp_path, "tuned", initial_weights=str(run), updates=6)
    assert launch(config, resume=tmp_path / "tuned")["updates"] == 6
    assert probe_learner(config).weights_nbytes > 0  # as on a host that joins
    with pytest.raises(ConfigError, match=r"is for a new run: train\(…, initial_weights=…\)"):
        apexrl.resume(tmp_path / "tuned", initial_weights=str(run))


def test_first_actions_are_not_random(tmp_path: Path) -> None:
    config = config_for(tmp_path, "tuned", initial_weights=str(tmp_path), random_start=True)
    assert not validate(config).actor.random_start
    assert validate(override(config, {"initial_weights": ""})).actor.random_start
    with pytest.raises(ConfigError, match="--random-start means nothing with --initial-weights"):
        validate(config, ["random_start"])


def test_the_path_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert override(Config(), {"initial_weights": "runs/a"}).learner.initial_weights == str(tmp_path / "runs" / "a")


class Fading(gym.Env[Any, Any]):
    """Episodes of four steps whose returns fall from one to the next: the first evaluation is the best."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        Fading.episodes += 1
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.zeros(2, np.float32), -float(Fading.episodes), self._steps == 4, False, {}


@pytest.mark.parametrize("begins", [False, True], ids=["new_weights", "initial_weights"])
def test_the_best_weights_may_be_those_that_it_began_with(tmp_path: Path, begins: bool) -> None:
    common = {"env": Fading, "eval_period_steps": 8}
    launch(config_for(tmp_path, "source", updates=5, **common))
    given = {"initial_weights": str(tmp_path / "source")} if begins else {}
    seen = Watcher()
    summary = launch(config_for(tmp_path, "tuned", env_steps=120, **common, **given), [seen])
    about = json.loads((tmp_path / "tuned" / "checkpoints" / "best.json").read_text())
    assert summary["updates"] > 0
    assert (about["updates"] == 0) == begins  # random weights count no more when others were evaluated
    assert summary["best_eval_return"] == about["eval_return"]
