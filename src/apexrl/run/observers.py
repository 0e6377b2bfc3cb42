"""Observers of a run that do one thing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apexrl.run.status import Level, RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config


class IdleObserver:
    """Ignores everything; subclasses override what they need."""

    def started(self, config: Config, folder: Path) -> None: ...

    def update(self, status: RunStatus) -> bool | str | None: ...

    def event(self, kind: str, values: dict[str, Any]) -> None: ...

    def message(self, text: str, level: Level = "info") -> None: ...

    def finished(self, summary: dict[str, Any]) -> None: ...


class FolderObserver(IdleObserver):
    """Remembers the run folder and the configuration."""

    def __init__(self, on_folder: Callable[[Path], None] | None = None) -> None:
        self.path: Path | None = None
        self.config: Config | None = None
        self._on_folder = on_folder

    def started(self, config: Config, folder: Path) -> None:
        self.path, self.config = folder, config
        if self._on_folder is not None:
            self._on_folder(folder)
