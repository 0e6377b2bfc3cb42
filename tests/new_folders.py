"""Run folders without a run."""

from __future__ import annotations

from apexrl.config import Config
from apexrl.run.folder import RunFolder


def new_folder(config: Config) -> RunFolder:
    """A new folder with its ``config.toml``."""
    folder = RunFolder.make(config)
    folder.write_config(config)
    return folder
