"""Whole runs whose storage fails them: they go on, and write again when it works again."""

from __future__ import annotations

import json
from pathlib import Path

from recording_observer import Watcher, small

from apexrl.config import Config, StopConfig
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
