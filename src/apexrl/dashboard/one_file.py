"""Writes the page with its data into one HTML file: ``apexrl report``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from apexrl.config.paths import expanded
from apexrl.dashboard import group_views, page, run_views
from apexrl.dashboard.run_index import RunFiles, RunIndex
from apexrl.errors import ConfigError
from apexrl.run.atomic_files import replace_text

_METRICS: Final = ("evaluation", "train_return", "env_steps_per_second")
_AXES: Final = ("env_steps", "updates", "wall_seconds")


def write_report(paths: Sequence[str | Path], out: Path) -> Path:
    """Write the page of some runs; returns its path.

    Args:
        paths: run folders, or folders that hold some.
        out: the file, replaced whole.

    Raises:
        ConfigError: there is no such folder, no run, or the file cannot be written.
    """
    runs = _named(run for path in paths for run in RunIndex(path).runs().values())
    if not runs:
        where = f" in {', '.join(map(str, paths))}" if paths else ""
        raise ConfigError(f"there is no run{where}: give run folders, such as runs/NAME")
    title = f"{len(runs)} runs" if len(runs) > 1 else next(iter(runs.values())).name
    text = page.in_one_file(dict(_answers(runs)), f"{title}, {datetime.now():%d %B %Y, %H:%M}")
    out = expanded(out)
    try:
        replace_text(out, text)
    except OSError as error:
        raise ConfigError(f"cannot write --out {out}: {error.strerror or error}") from error
    return out


def _named(found: Iterable[RunFiles]) -> dict[str, RunFiles]:
    """The runs by name; of two with one name the second has its folder's with it, and one given twice is there once."""
    runs: dict[str, RunFiles] = {}
    for run in found:
        if run.path in {one.path for one in runs.values()}:
            continue
        run.name = run.name if run.name not in runs else str(run.path)
        runs[run.name] = run
    return runs


def _answers(runs: dict[str, RunFiles]) -> Iterator[tuple[str, Any]]:
    """What the page asks for, as ``source.js`` spells it."""
    yield "runs", [run.overview() for run in runs.values()]
    diagnoses, replays = run_views.Diagnoses(), run_views.SavedReplays()
    for name, run in runs.items():
        yield f"curves&run={name}", run_views.curves(run)
        yield f"workers&run={name}", run_views.workers(run)
        yield f"diagnosis&run={name}", diagnoses.of(run)
        yield f"settings&run={name}", run_views.settings(run)
        yield f"films&run={name}", run_views.films(run)
        yield f"replay&run={name}", replays.of(run)
    for metric in _METRICS:
        for axis in _AXES:
            yield f"compare&metric={metric}&axis={axis}", group_views.comparison(list(runs.values()), metric, axis)
