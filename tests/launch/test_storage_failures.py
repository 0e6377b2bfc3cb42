"""Whole runs whose storage fails them: they go on, and write again when it works again."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recording_observer import Watcher, small

from apexrl.config import Config, StopConfig
from apexrl.errors import ConfigError
from apexrl.launch import launch
from apexrl.run import checkpoint
from apexrl.run.status import RunStatus


def test_checkpoints_that_cannot_be_written_cost_no_learner(tmp_path: Path) -> None:
    """A file in the folder's place stands for a disk that is full: nobody needs to be root for it."""
    at: list[int] = []

    def act(status: RunStatus) -> bool:
        place = watcher.folder / "checkpoints"
        told = any("best weights" in text for text in watcher.texts)
        if not at and told and status.updates and status.dropped["checkpoint_writes"] > 1:
            at.append(status.updates)
            place.unlink()
        return bool(at) and checkpoint.latest(place) is not None and (place / checkpoint.BEST).exists()

    class Blocking(Watcher):
        def started(self, config: Config, folder: Path) -> None:
            super().started(config, folder)
            (folder / "checkpoints").write_text("in the way")

    summary = launch(small(tmp_path, stop=StopConfig(minutes=5.0)), [watcher := Blocking(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"] == {"actor": 0, "learner": 0, "evaluator": 0}
    assert summary["dropped"]["checkpoint_writes"] >= 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["dropped"] == summary["dropped"]
    assert sum("learner-0 could not write a checkpoint" in text for text in watcher.texts) == 1
    assert any("learner-0 has written a checkpoint again" in text for text in watcher.texts)
    final = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert final is not None
    assert final.name.endswith(f"update-{summary['updates']:09d}.safetensors")


@pytest.mark.parametrize("left", [0, 1])
def test_no_run_begins_on_a_full_disk(left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many small files, of which the settings are the first."""
    written: list[str] = []

    def replace_text(path: Path, text: str, *check: Any) -> None:
        if len(written) == left:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path.name)
        path.write_text(text)

    monkeypatch.setattr("apexrl.run.folder.replace_text", replace_text)
    monkeypatch.setattr("apexrl.run.ownership.replace_text", replace_text)
    with pytest.raises(ConfigError, match=r"cannot write in the run folder .*run: No space left on device"):
        launch(replace(small(tmp_path), serial=True))
    assert written == ["config.toml"] * left
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
