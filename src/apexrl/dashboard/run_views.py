"""What the page shows of one run, as values that JSON knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from apexrl.dashboard.metrics_reader import Row, finite
from apexrl.dashboard.run_index import RunFiles
from apexrl.errors import ApexrlError
from apexrl.run import worker_list
from apexrl.run.metric_catalogue import metric_of
from apexrl.run.worker_health import in_trouble, medians

FILM_DEPTH: Final = 3
MOST_FILMS: Final = 200
MOST_WORKERS: Final = 20_000
DIAGNOSIS_SECONDS: Final = 60.0
"""Between two diagnoses of a run that goes on."""

LARGEST_REPLAY: Final = 256 << 20
"""Bytes of a saved replay that is read."""

_AXES: Final = ("env_steps", "updates", "wall_seconds")


def curves(run: RunFiles, cursor: str = "") -> dict[str, Any]:
    """The run's numbers, columns of status lines and evaluations.

    Args:
        cursor: of an earlier answer; then only what is new since, if ``whole`` is false.
    """
    metrics = run.metrics
    metrics.refresh()
    here = [metrics.epoch]
    found = {"status": metrics.status, "evaluations": metrics.evaluations, "tuning": metrics.tuning}
    tables = {name: (table.stride, table.rows[:]) for name, table in found.items()}  # another request may add rows now
    here += [number for stride, rows in tables.values() for number in (stride, len(rows))]
    before = [int(part) for part in cursor.split(".") if part.isdecimal()]
    same = len(before) == len(here) and before[0] == here[0] and before[1::2] == here[1::2]
    seen = before[2::2] if same else [0] * len(tables)
    names = {name for _, rows in tables.values() for row in rows[-50:] for name in row} if not same else set()
    return {
        "run": run.overview(),
        "cursor": ".".join(map(str, here)),
        "whole": not same,
        **{name: _columns(rows[start:]) for (name, (_, rows)), start in zip(tables.items(), seen, strict=True)},
        "last": metrics.last,
        "finals": metrics.finals,
        "messages": list(metrics.messages)[-100:],
        "lag": {str(least): count for least, count in sorted(metrics.lag.items())},
        "capacity": run.config.get("capacity") if _family(run) == "replay" else None,
        "goal": run.config.get("stop_at_return"),
        "limits": {name: run.config.get(name) for name in ("env_steps", "minutes")},
        "metrics": _described(names | metrics.last.keys(), str(run.config.get("agent", ""))) if not same else {},
    }


def _family(run: RunFiles) -> str:
    from apexrl.report.metric_ranges import family

    return family(str(run.config.get("agent", "")))


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row if name != "phase")
    return {name: [_short(row.get(name)) for row in rows] for name in names}


def _short(value: Any) -> Any:
    """Six figures are more than a picture shows."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _described(names: Iterable[str], agent: str) -> dict[str, Any]:
    from apexrl.report.metric_ranges import diagnostic, family

    found = {}
    for name in sorted(names):
        about = metric_of(name)
        entry = diagnostic(name.removeprefix("agent/"), family(agent))
        found[name] = {"meaning": about.description, "unit": about.unit, "counts": about.counts}
        if entry is not None and entry.healthy != "any":
            found[name]["healthy"] = entry.healthy
    return found


def workers(run: RunFiles) -> dict[str, Any]:
    """The workers as the run's main process saw them last."""
    found = run.workers
    if found is None:
        return {"workers": [], "roles": [], "at": 0, "host": "", "now": round(time.time(), 1)}
    return {"at": found.at, "host": found.host, "now": round(time.time(), 1), **_worker_table(found)}


def _worker_table(found: worker_list.WorkerList) -> dict[str, Any]:
    worst = in_trouble(found.workers)
    troubles = {one.worker.name: one.trouble for one in worst}
    usual = medians(found.workers)
    roles = []
    for role in sorted({worker.role for worker in found.workers}):
        some = [worker for worker in found.workers if worker.role == role]
        roles.append(
            {
                "role": role,
                "workers": len(some),
                "well": sum(worker.name not in troubles for worker in some),
                "median": _short(usual.get(role)),
                "together": _short(sum(worker.rate for worker in some)),
                "unit": some[0].work.unit,
                "restarts": sum(worker.restarts for worker in some),
            }
        )
    rows = [
        [one.name, one.role, one.state, troubles.get(one.name, ""), _short(one.rate), one.work.unit,
         _short(one.heartbeat_age_seconds), one.restarts, one.pid]
        for one in found.workers[:MOST_WORKERS]
    ]  # fmt: skip
    return {"roles": roles, "workers": rows}


class Diagnoses:
    """What ``apexrl doctor`` says of runs, kept until their files change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], float, dict[str, Any]]] = {}

    def of(self, run: RunFiles) -> dict[str, Any]:
        """The causes with their advice; ``trouble``: why there are none."""
        stamp, now = run.stamp("metrics.jsonl"), time.monotonic()
        known = self._known.get(run.name)
        if known is not None and (known[0] == stamp or now - known[1] < DIAGNOSIS_SECONDS):
            return known[2]
        found = _diagnosed(run.path)
        self._known[run.name] = (stamp, now, found)
        return found


def _diagnosed(path: Path) -> dict[str, Any]:
    from apexrl.report.diagnosis import diagnose
    from apexrl.report.diagnosis.recorded_run import RunRecord

    try:
        record = RunRecord.of(path)
        causes = diagnose(record)
    except ApexrlError as error:
        return {"causes": [], "trouble": str(error)[:1000]}
    except Exception as error:  # rows of another version, or damaged ones
        return {"causes": [], "trouble": f"this run's files cannot be judged ({type(error).__name__}: {error})"[:1000]}
    return {
        "risen": round(record.risen, 2),
        "evaluations": len(record.evaluations),
        "trouble": "",
        "causes": [
            {
                "title": cause.title,
                "likely": cause.likely,
                "confidence": cause.confidence,
                "evidence": [one.text for one in cause.evidence],
                "change": cause.change,
            }
            for cause in causes
        ],
    }


def settings(run: RunFiles) -> dict[str, Any]:
    """Every setting: name, value, default and meaning."""
    from apexrl.config import Config
    from apexrl.config.convert import flat, known_settings

    defaults, known = flat(Config()), known_settings()
    rows = []
    for name, value in run.config.items():
        usual = _plain(defaults.get(name))
        meaning = known[name][1].description if name in known else ""
        rows.append([name, value, usual, name in defaults and value != usual, meaning])
    return {"settings": rows}


def _plain(value: Any) -> Any:
    """A setting's default as ``RunFiles.config`` has settings."""
    if isinstance(value, tuple | list):
        return " ".join(str(one) for one in value)
    if isinstance(value, Mapping):
        return "" if not value else str(value)
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


class SavedReplays:
    """What lies in runs' saved replays, kept until they change. One is looked into at a time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {}
        self._looking = threading.Lock()

    def of(self, run: RunFiles) -> dict[str, Any]:
        """Counters, and histograms of priorities and ages; empty: there is no saved replay; ``trouble``: why it is not
        shown."""
        stamp = run.stamp("checkpoints/replay")
        if not stamp[0] or run.state == "running":
            return {}
        if stamp[1] > LARGEST_REPLAY:
            size = f"{stamp[1] >> 20} MiB, more than the {LARGEST_REPLAY >> 20} MiB that are read here"
            return {"trouble": f"it has {size}: apexrl replay inspect RUN"}
        with self._looking:
            known = self._known.get(run.name)
            if known is None or known[0] != stamp:
                known = self._known[run.name] = (stamp, _looked_into(run.path / "checkpoints" / "replay"))
            return known[1]


def _looked_into(path: Path) -> dict[str, Any]:
    from apexrl.replay import Replay
    from apexrl.replay.inspection import histogram, inspect

    try:
        with Replay.load(path) as replay:
            found = inspect(replay)
    except (ApexrlError, OSError) as error:
        return {"trouble": str(error)[:500]}
    stats = found.stats
    return {
        "trouble": "",
        "size": stats["size"],
        "capacity": stats["capacity"],
        "inserted": stats["inserted"],
        "sampled": stats["sampled"],
        "drawn": len(found.keys),
        "priorities": [] if found.priorities is None else histogram(found.priorities, found.share),
        "ages": [] if found.ages is None else histogram(found.ages, found.share),
    }


def films(run: RunFiles) -> list[dict[str, Any]]:
    """Videos in the run folder, the newest first."""
    found = []
    told = run.film_notes
    for path in _films(run.path):
        try:
            about = path.stat()
        except OSError:  # it was removed
            continue
        name = path.relative_to(run.path).as_posix()
        note = told.get(path.stem) if path.parent == run.path / "films" else None
        episode = {key: finite(note.get(key)) for key in ("return", "steps")} if isinstance(note, dict) else {}
        found.append({"file": name, "at": round(about.st_mtime), "bytes": about.st_size, **episode})
    return sorted(found, key=lambda film: (-film["at"], film["file"]))


def film(run: RunFiles, name: str) -> Path | None:
    """The video of that name; None: the run folder has none, whatever the name says."""
    wanted = run.path / name
    return next((path for path in _films(run.path) if path == wanted), None)


def _films(root: Path) -> Sequence[Path]:
    found: list[Path] = []
    folders = [(root, FILM_DEPTH)]
    while folders and len(found) < MOST_FILMS:
        folder, depth = folders.pop()
        try:
            entries = sorted(folder.iterdir())
        except OSError:
            continue
        for path in entries:
            if path.is_symlink() or path.name.startswith("."):
                continue
            if path.suffix == ".mp4" and path.is_file():
                found.append(path)
            elif depth > 1 and path.name != "checkpoints" and path.is_dir():
                folders.append((path, depth - 1))
    return found[:MOST_FILMS]


def lines_of(run: RunFiles, metric: str, axis: str) -> list[Row]:
    """Rows that have a metric, of evaluations for ``evaluation``."""
    run.metrics.refresh()
    rows = run.metrics.evaluations.rows if metric == "evaluation" else run.metrics.status.rows
    name = "mean" if metric == "evaluation" else metric
    axis = axis if axis in _AXES else "env_steps"
    return [{"x": row[axis], "y": row[name]} for row in rows if row.get(axis) is not None and row.get(name) is not None]
