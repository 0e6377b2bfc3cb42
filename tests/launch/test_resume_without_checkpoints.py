"""A run of whose weights nothing is left cannot be resumed, and says so before anything is changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from recording_observer import Watcher, small

from apexrl.config import Config, StopConfig
from apexrl.errors import SnapshotError
from apexrl.launch import launch
from apexrl.roles import checkpointing
from apexrl.run.folder import RunFolder


def trained(tmp_path: Path) -> tuple[Config, RunFolder, int]:
    config = replace(small(tmp_path, stop=StopConfig(env_steps=800)), serial=True)
    summary = launch(config)
    more = replace(config, stop=StopConfig(env_steps=summary["env_steps"] + 400))
    return more, RunFolder(tmp_path / "run"), summary["updates"]


@pytest.mark.parametrize("serial", [True, False])
def test_a_run_whose_checkpoints_are_gone_is_not_resumed(tmp_path: Path, serial: bool) -> None:
    more, folder, updates = trained(tmp_path)
    shutil.rmtree(folder.checkpoints)
    before = folder.summary_path.read_text(), folder.metrics_path.read_text()
    with pytest.raises(SnapshotError) as caught:
        launch(replace(more, serial=serial), resume=folder.path)
    text = str(caught.value)
    assert f"{updates} updates are recorded, but {folder.checkpoints} is not there" in text
    assert f"apexrl train {folder.config_path} --name run-again" in text
    assert (folder.summary_path.read_text(), folder.metrics_path.read_text()) == before
    folder.checkpoints.mkdir()
    with pytest.raises(SnapshotError, match="holds no checkpoint"):
        launch(replace(more, serial=serial), resume=folder.path)


def test_the_best_weights_are_enough(tmp_path: Path) -> None:
    more, folder, updates = trained(tmp_path)
    for path in folder.checkpoints.glob("generation-*-update-*"):
        path.unlink()
    after = launch(more, [watcher := Watcher()], resume=folder.path)
    assert after["updates"] > updates
    assert any("there is no checkpoint but best.safetensors" in text for text in watcher.texts)


def test_a_run_that_was_killed_before_it_learned_goes_on(tmp_path: Path) -> None:
    more, folder, _ = trained(tmp_path)
    shutil.rmtree(folder.checkpoints)
    folder.summary_path.unlink()
    filling = {"kind": "status", "env_steps": 50, "updates": 0, "episodes": 2, "wall_seconds": 0.1}
    folder.metrics_path.write_text(json.dumps(filling) + "\n")
    assert launch(more, resume=folder.path)["updates"] > 0


def test_nothing_recorded_is_nothing_missing(tmp_path: Path) -> None:
    checkpointing.check_left(RunFolder(tmp_path), 0)
    with pytest.raises(SnapshotError, match="5 updates are recorded"):
        checkpointing.check_left(RunFolder(tmp_path), 5)
