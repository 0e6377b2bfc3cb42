"""What ``train`` and ``join`` attach to a run: the panel, the pictures at its end, the copies of its checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from apexrl.errors import FencedError
from apexrl.run.folder import RunFolder
from apexrl.run.log_lines import LogFormat
from apexrl.run.observers import FolderObserver
from apexrl.run.status import Observer


def panels(show: bool, log_format: LogFormat = "text") -> list[Observer]:
    """What shows a run on the terminal, or in a notebook; nothing without ``show``."""
    if not show:
        return []
    from apexrl.report.notebook_panel import NotebookPanel, in_notebook

    if log_format == "text" and in_notebook():
        return [NotebookPanel()]
    from apexrl.report.live_panel import panel

    return [panel(log_format=log_format)]


@contextmanager
def drawn(folder: FolderObserver, observers: Sequence[Observer]) -> Iterator[None]:
    """Draw the pictures of the run folder when the run has ended, unless another process has it now."""
    try:
        yield
    finally:
        if folder.path is not None and folder.config is not None and not isinstance(sys.exception(), FencedError):
            from apexrl.report.run_charts import draw_all

            draw_all(RunFolder(folder.path), folder.config, observers)


def copies(url: str) -> Observer:
    """What copies checkpoints to an object store, if it can be written now."""
    from apexrl.launch.checkpoint_copies import CheckpointCopies

    observer = CheckpointCopies(url)
    observer.check()
    return observer
