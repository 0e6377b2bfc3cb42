"""How far a run had come that is resumed, and whether it may go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from apexrl.config import StopConfig
from apexrl.errors import ConfigError, SnapshotError
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.metrics import read_rows


@dataclass(frozen=True)
class Base:
    """The counters that a resumed run starts from."""

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    elapsed_seconds: float = 0.0
    best_eval_return: float | None = None
    best_updates: int = 0  # of the weights that had it


def base_of(folder: RunFolder) -> Base:
    """Read from a run folder how far the run had come: the furthest of checkpoint, log and summary. Where it took over
    another run's state, what its log says from then on."""
    found = checkpoint.load_latest(folder.checkpoints)
    rows = read_rows(folder.metrics_path) if folder.metrics_path.exists() else []
    try:
        summary = folder.summary()
    except SnapshotError:
        summary = {}
    began = max((number for number, row in enumerate(rows) if "state_of" in row), default=0)
    sources: list[Mapping[str, Any]] = [found.metadata if found else {}, summary, *rows[began:]]

    def furthest(name: str, sources: Sequence[Mapping[str, Any]] = sources) -> Any:
        return max((source[name] for source in sources if source.get(name) is not None), default=None)

    updates, best_return = int(furthest("updates") or 0), furthest("best_eval_return")
    best_updates = updates if best_return is not None else 0
    with suppress(SnapshotError):  # damaged ones are chosen anew
        if (path := checkpoint.best(folder.checkpoints)) is not None:
            about = checkpoint.load(path).metadata
            best_return, best_updates = about.get("eval_return", best_return), int(about.get("updates", updates))
    return Base(
        env_steps=int(furthest("env_steps") or 0),
        updates=updates,
        episodes=int(furthest("episodes") or 0),
        elapsed_seconds=float(furthest("wall_seconds", [summary, *rows]) or 0.0),
        best_eval_return=best_return,
        best_updates=best_updates,
    )


def check_ahead(stop: StopConfig, folder: RunFolder) -> None:
    """Refuse to resume a run that would end at once, before it overwrites the summary.

    One that did not end cleanly may go on, if only to its end.

    Raises:
        ConfigError: it has had what shall end it; the message names the setting.
    """
    try:
        summary = folder.summary()
    except SnapshotError:
        return
    if summary.get("stopped_by") in (None, "error", "interrupted"):
        return
    had = {name: summary.get(name, 0) for name in ("env_steps", "updates")}
    had["minutes"] = summary.get("wall_seconds", 0.0) / 60.0
    for name, value in had.items():
        most = getattr(stop, name)
        if most and value >= most:
            flag = f"--{name.replace('_', '-')}"
            had_it = f"this run has had {_spelled(value)} of {flag} {_spelled(most)}"
            raise ConfigError(f"{had_it}: to go on, say more, or 0 for no limit")


def _spelled(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"
