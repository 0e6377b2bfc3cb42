"""Which runs lie in a folder, and what each is in a line."""

from __future__ import annotations

import json
import os
import threading
import time
import tomllib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from apexrl.config.paths import expanded
from apexrl.config.settings import did_you_mean
from apexrl.dashboard.metrics_reader import MetricsReader, finite, newest_status
from apexrl.errors import ConfigError, SnapshotError
from apexrl.run import worker_list
from apexrl.run.atomic_files import read_text

DEPTH: Final = 3
"""Folders within folders in which runs are looked for, so that those of comparisons are found."""
MOST_RUNS: Final = 5_000
MOST_FOLDERS: Final = 20_000
LIVE_SECONDS: Final = 45.0
"""A run writes a status at least every 10 s."""
LOOK_SECONDS: Final = 2.0
"""Between two looks for new runs."""

Setting = str | int | float | bool | None


class RunFiles:
    """One run folder: what is known of it, read again where its files have changed. For any thread."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        """Its path below the folder of runs, with ``/``."""
        self.path = path
        self.metrics = MetricsReader(path / "metrics.jsonl")
        self._known: dict[str, tuple[tuple[int, int, int], Any]] = {}

    def stamp(self, name: str) -> tuple[int, int, int]:
        """Inode, size and time of change of a file of the folder, in ns; zeros: there is none."""
        try:
            found = os.stat(self.path / name)
        except OSError:
            return (0, 0, 0)
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def _cached(self, name: str, read: Any) -> Any:
        stamp = self.stamp(name)
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            known = (stamp, read() if stamp[0] else None)
            self._known[name] = known
        return known[1]

    @property
    def config(self) -> dict[str, Setting]:
        """Settings by name, as ``config.toml`` has them; empty: it cannot be read."""
        return self._cached("config.toml", lambda: _config(self.path / "config.toml")) or {}

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``; empty: the run has not ended, or it cannot be read."""
        return self._cached("summary.json", lambda: _json(self.path / "summary.json")) or {}

    @property
    def film_notes(self) -> dict[str, Any]:
        """What ``apexrl watch --record`` noted of its films, by their names."""
        found = self._cached("films/films.json", lambda: _json(self.path / "films" / "films.json")) or {}
        films = found.get("films")
        return films if isinstance(films, dict) else {}

    @property
    def status(self) -> dict[str, Any]:
        """The newest status, from the end of the log."""
        return self._cached("metrics.jsonl", lambda: newest_status(self.path / "metrics.jsonl")) or {}

    @property
    def workers(self) -> worker_list.WorkerList | None:
        found: worker_list.WorkerList | None = self._cached(worker_list.NAME, lambda: worker_list.read(self.path))
        return found

    @property
    def state(self) -> str:
        """``running``; ``done``; ``interrupted``; ``failed``; ``silent``: it has neither ended nor written lately;
        ``empty``: nothing was written yet."""
        metrics, summary = self.stamp("metrics.jsonl")[2], self.stamp("summary.json")[2]
        if summary and summary >= metrics - int(LIVE_SECONDS * 1e9) and not self._resumed(metrics, summary):
            stopped = self.summary.get("stopped_by")
            return "failed" if stopped == "error" else "interrupted" if stopped == "interrupted" else "done"
        if not metrics:
            return "empty"
        return "running" if time.time() - metrics / 1e9 < LIVE_SECONDS else "silent"

    def _resumed(self, metrics: int, summary: int) -> bool:
        """Whether a run that had ended goes on."""
        workers = self.stamp(worker_list.NAME)[2]
        return workers > summary or metrics > summary + int(5e9)

    def overview(self) -> dict[str, Any]:
        """A line about the run."""
        state, summary = self.state, self.summary
        about = summary if state != "running" and summary else self.config
        status = self.status
        metrics = self.stamp("metrics.jsonl")[2]
        config = self.stamp("config.toml")[2]
        return {
            "name": self.name,
            "state": state,
            "phase": status.get("phase", ""),
            "env": _word(about.get("env")),
            "preset": _word(about.get("preset")),
            "agent": _word(about.get("agent")),
            "topology": _word(about.get("topology")),
            "seed": finite(about.get("seed")),
            "env_steps": status.get("env_steps", finite(summary.get("env_steps"))),
            "steps_per_second": status.get("env_steps_per_second"),
            "return": status.get("eval_return", status.get("train_return")),
            "best": status.get("best_eval_return"),
            "final": finite(summary.get("final_eval_return")),
            "seconds": status.get("wall_seconds"),
            "at": round((metrics or config) / 1e9),
            "placement": "Redis" if self.stamp("hosts.json")[0] else "Ray" if self.stamp("ray.json")[0] else "",
        }


class RunIndex:
    """The runs below a folder. Links that lead elsewhere are not followed. For any thread.

    Args:
        root: a folder that holds run folders, at most ``DEPTH`` deep, or one run folder.

    Raises:
        ConfigError: there is no such folder.
    """

    def __init__(self, root: str | Path) -> None:
        given = expanded(root)
        if not given.is_dir():
            beside = [entry.name for entry in given.parent.iterdir() if entry.is_dir()] if given.parent.is_dir() else []
            near = did_you_mean(given.name, beside)
            raise ConfigError(f"{given} is no folder: give one that holds run folders, such as runs/{near}")
        self.root = given.resolve()
        self._runs: dict[str, RunFiles] = {}
        self._only = ""
        if (self.root / "config.toml").is_file():
            self._only, self.root = self.root.name, self.root.parent
        self._looked_at = -LOOK_SECONDS
        self._looking = threading.Lock()

    def runs(self) -> dict[str, RunFiles]:
        with self._looking:
            if time.monotonic() - self._looked_at >= LOOK_SECONDS:
                found = [self._only] if self._only else list(_found(self.root))
                self._runs = {name: self._runs.get(name) or RunFiles(name, self.root / name) for name in found}
                self._looked_at = time.monotonic()
            return self._runs

    def run(self, name: str) -> RunFiles | None:
        """The run of that name; None: there is none below the folder, whatever the name says."""
        return self.runs().get(name)


def _found(root: Path) -> Iterator[str]:
    """Names of the run folders, those of one folder before those of the next."""
    folders, runs, looked = [(root, "", DEPTH)], 0, 0
    while folders and runs < MOST_RUNS and looked < MOST_FOLDERS:
        path, name, depth = folders.pop(0)
        looked += 1
        try:
            with os.scandir(path) as entries:
                inner = sorted(one.name for one in entries if _shown(one.name) and one.is_dir(follow_symlinks=False))
        except OSError:  # it was removed, or is not ours to read
            continue
        for one in inner:
            if os.path.lexists(path / one / "config.toml"):
                runs += 1
                yield f"{name}{one}"
            elif depth > 1:
                folders.append((path / one, f"{name}{one}/", depth - 1))


def _shown(name: str) -> bool:
    """Whether a folder is looked into: it is not hidden, and a browser can ask for its name."""
    return not name.startswith(".") and name.encode(errors="replace").decode() == name


def _config(path: Path) -> dict[str, Setting]:
    try:
        table = tomllib.loads(read_text(path, 4 << 20))
    except (OSError, ValueError, SnapshotError, RecursionError):
        return {}
    return dict(_flat(table))


def _flat(table: dict[str, Any]) -> Iterator[tuple[str, Setting]]:
    for name, value in table.items():
        if isinstance(value, dict):
            if name.endswith(("_kwargs", "_settings")):
                yield name, json.dumps(value, default=str)[:500] if value else ""
            else:
                yield from _flat(value)
        elif isinstance(value, list):
            yield name, " ".join(str(one) for one in value[:64])[:500]
        elif isinstance(value, str):
            yield name, value[:500]
        elif isinstance(value, bool):
            yield name, value
        elif isinstance(value, int | float):
            yield name, finite(value)
        elif isinstance(value, datetime):
            yield name, value.isoformat()


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_text(path, 4 << 20))
    except (OSError, ValueError, SnapshotError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _word(value: Any) -> str:
    return value[:120] if isinstance(value, str) else ""
