"""One run goes on with the state of another: weights, optimizer, normalisation, best weights, replay."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from typing import Final

from apexrl.config import Config
from apexrl.errors import SnapshotError
from apexrl.run import checkpoint
from apexrl.run.atomic_files import open_lines, replacing
from apexrl.run.folder import RunFolder
from apexrl.run.ownership import Fence, RunLock

LOCK_SECONDS: Final = 60.0
"""How long to wait for the end of a run whose sweep was killed."""


def take_over(source: RunFolder, target: RunFolder, config: Config, text: str) -> None:
    """Put the newest checkpoint of ``source`` in place of the state of ``target``. May be repeated.

    Args:
        config: with which ``target`` goes on.
        text: noted in the log of ``target``.

    Raises:
        SnapshotError: ``source`` has no checkpoint that can be read.
        HeldError: a process trains ``target``.
    """
    found = checkpoint.load_latest(source.checkpoints)
    if found is None:
        raise SnapshotError(f"{source.path} has no checkpoint: nothing can take over its state")
    best = checkpoint.best(source.checkpoints)
    target.path.mkdir(exist_ok=True)
    with closing(RunLock(target.path, LOCK_SECONDS)):
        number = target.generations.begin(checkpoint.newest_generation(target.checkpoints))
        fence = Fence(target.path, "population", number)
        target.write_config(config)
        checkpoint.save(target.checkpoints, found.arrays, found.metadata, keep=1, fence=fence)
        if best is not None:
            weights = checkpoint.load(best)
            checkpoint.save_best(target.checkpoints, weights.arrays, weights.metadata, fence)
        elif (own := checkpoint.best(target.checkpoints)) is not None:
            own.unlink()
            own.with_suffix(".json").unlink(missing_ok=True)
        if source.replay_path.is_file():
            with replacing(target.replay_path, fence.check) as temporary:
                shutil.copyfile(source.replay_path, temporary)
        else:
            target.replay_path.unlink(missing_ok=True)
        target.summary_path.unlink(missing_ok=True)  # of the state that is gone
        counts = {name: found.metadata.get(name) for name in ("env_steps", "updates", "episodes")}
        row = {
            "kind": "message",
            "wall_seconds": None,
            **counts,
            "state_of": source.path.name,
            "level": "info",
            "text": text,
        }
        with open_lines(target.metrics_path) as log:
            log.write(json.dumps(row).encode() + b"\n")
