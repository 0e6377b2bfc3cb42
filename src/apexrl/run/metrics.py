"""Metrics of a run: rates, progress towards the stop rules, ``metrics.jsonl``, TensorBoard events.

Every line of ``metrics.jsonl`` is a JSON object with ``kind`` (``status``, ``evaluation``, ``message``, ``tuning`` or
``env_change``),
``wall_seconds`` of training, ``env_steps`` and ``updates``. TensorBoard's step axis is environment steps; of a run that
makes none, updates.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apexrl.config import StopConfig
from apexrl.errors import FencedError, SnapshotError
from apexrl.run.atomic_files import AppendedFile, open_lines, open_plain
from apexrl.run.episode_metrics import scalars, told_spreads
from apexrl.run.metric_catalogue import TAGS
from apexrl.run.metric_samples import status_scalars
from apexrl.run.status import Level, RunStatus

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

    from apexrl.config import Config


class RateMeter:
    """Events per second over a sliding window, from a counter that only grows."""

    def __init__(self, window_seconds: float = 5.0) -> None:
        self._window = window_seconds
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, now_seconds: float, total: float) -> float:
        """Note the counter's value at ``now_seconds`` (monotonic) and return the rate, in 1/s."""
        seen = self._seen
        if seen and total < seen[-1][1]:  # the counter began anew
            seen.clear()
        seen.append((now_seconds, total))
        while len(seen) > 2 and seen[1][0] <= now_seconds - self._window:
            seen.popleft()
        return self.rate

    @property
    def rate(self) -> float:
        """The rate between the oldest and the newest value of the window, in 1/s; 0 with fewer than two."""
        if len(self._seen) < 2:
            return 0.0
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began else 0.0


def progress(stop: StopConfig, status: RunStatus) -> tuple[float | None, float | None]:
    """Progress towards the stop rule that will be met first. ``stop_at_return`` cannot be predicted.

    Returns:
        (0 … 1, seconds left); None: unknown.
    """
    done: list[float] = []
    left: list[float] = []
    for limit, made, per_second in (
        (stop.env_steps, status.env_steps, status.env_steps_per_second),
        (stop.updates, status.updates, status.updates_per_second),
    ):
        if not limit:
            continue
        done.append(min(1.0, made / limit))
        if made >= limit:
            left.append(0.0)
        elif per_second > 0:
            left.append((limit - made) / per_second)
    if stop.minutes:
        seconds = 60.0 * stop.minutes
        done.append(min(1.0, status.elapsed_seconds / seconds))
        left.append(max(0.0, seconds - status.elapsed_seconds))
    return max(done, default=None), min(left, default=None)


class RunLog:
    """Writes ``metrics.jsonl`` and TensorBoard events of one run; an ``Observer``.

    A status line a second, after ten minutes one every ten: a week's run stays below 20 MB.

    Args:
        folder: the run folder. Files that are there already (a resumed run) are continued.
        check: raises FencedError when another process has taken over the folder; nothing more is written then.
    """

    writes = "metrics.jsonl and TensorBoard's events"

    def __init__(self, folder: Path, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._status = RunStatus()
        self._logged_at = -math.inf
        self._rows = AppendedFile(lambda: open_lines(Path(folder) / "metrics.jsonl"))
        self._events = AppendedFile(lambda: open_events(Path(folder)))

    def started(self, config: Config, folder: Path) -> None:
        self._rows.write(b"")
        self._events.write(b"")

    def update(self, status: RunStatus) -> None:
        self._status = status
        now = time.monotonic()
        if now - self._logged_at >= (1.0 if status.elapsed_seconds < 600 else 10.0):
            self._logged_at = now
            self._write_status()

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        if kind not in ("evaluation", "tuning", "env_change") or self._fenced():
            return
        status = self._status
        seconds = max(0.0, status.elapsed_seconds - values.get("seconds_ago", 0.0))
        at = {"env_steps": status.env_steps, "updates": status.updates}
        metrics = told_spreads(values.get("metrics"))
        told = {"metrics": {name: one._asdict() for name, one in metrics.items()}} if metrics else {}
        self._write({"kind": kind, "wall_seconds": round(seconds, 3), **at, **values, **told})
        if kind == "tuning":
            counts = {f"autotune/{name}": float(count) for name, count in values["setting"].items()}
            self._scalars({**counts, "autotune/rate": values["rate"]}, status.axis_steps)
        elif kind == "evaluation" and not values.get("final"):
            at |= {name: int(values[name]) for name in at if name in values}
            step = at["env_steps"] or at["updates"]
            self._scalars({"return/eval": values["mean"], **scalars(metrics, "eval")}, step)

    def message(self, text: str, level: Level = "info") -> None:
        if self._fenced():
            return
        status = self._status
        where = {"wall_seconds": round(status.elapsed_seconds, 3), "env_steps": status.env_steps}
        self._write({"kind": "message", **where, "updates": status.updates, "level": level, "text": text})

    def finished(self, summary: Mapping[str, Any]) -> None:
        self._write_status()
        self.close()

    def close(self) -> None:
        """Close both files; may be called twice."""
        self._rows.close()
        self._events.close()

    def _fenced(self) -> bool:
        try:
            self._check()
        except FencedError:
            return True
        except SnapshotError:
            pass  # unknown: keep writing
        return False

    def _write_status(self) -> None:
        if self._fenced():
            return
        values = status_scalars(self._status)
        histogram = self._status.lag_histogram
        lags = {"policy_lag_histogram": dict(histogram)} if histogram else {}
        self._write({"kind": "status", "phase": self._status.phase, **values, **lags})
        tags = {TAGS[name]: value for name, value in values.items() if name in TAGS}
        tags |= {f"agent/{name}": value for name, value in self._status.metrics.items()}
        tags |= scalars(self._status.episode_metrics, "episode")
        tags |= {f"custom/{name}": value for name, value in self._status.custom_metrics.items()}
        tags |= {f"inference/{name}": value for name, value in self._status.inference.items()}
        tags |= {f"hosts/{name}": value for name, value in self._status.hosts.items()}
        self._scalars(tags | self._status.machine, self._status.axis_steps)
        if histogram:
            self._histogram("policy_lag/steps", histogram, self._status.axis_steps)

    def _write(self, row: Mapping[str, Any]) -> None:
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._rows.write(json.dumps(plain).encode() + b"\n")

    def _scalars(self, values: Mapping[str, float | None], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        shown = [
            Summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
            if value is not None and math.isfinite(value)
        ]
        if shown:
            self._events.write(_record(Event(wall_time=time.time(), step=step, summary=Summary(value=shown))))

    def _histogram(self, tag: str, counts: Mapping[int, int], step: int) -> None:
        """Write a histogram. ``counts``: least value of a bin -> count; a bin ends where the next listed one begins."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.histogram_pb2 import HistogramProto
        from tensorboard.compat.proto.summary_pb2 import Summary

        least = sorted(counts)
        histogram = HistogramProto(
            min=least[0],
            max=least[-1] + 1,
            num=sum(counts.values()),
            sum=sum(value * count for value, count in counts.items()),
            sum_squares=sum(value**2 * count for value, count in counts.items()),
            bucket_limit=[*(float(value) for value in least[1:]), least[-1] + 1.0],
            bucket=[float(counts[value]) for value in least],
        )
        summary = Summary(value=[Summary.Value(tag=tag, histo=histogram)])
        self._events.write(_record(Event(wall_time=time.time(), step=step, summary=summary)))


_NUMBERS = itertools.count()


def open_events(folder: Path) -> io.FileIO:
    """A new file of events, which TensorBoard reads after the others. One that was cut short is not continued: its
    reader goes no further there."""
    from tensorboard.compat.proto.event_pb2 import Event

    name = f"events.out.tfevents.{int(time.time()):010d}.{platform.node()}.{os.getpid()}.{next(_NUMBERS)}"
    file = io.FileIO(folder / name, "x")
    try:
        file.write(_record(Event(wall_time=time.time(), file_version="brain.Event:2")))
    except OSError:
        file.close()
        raise
    return file


def _record(event: Event) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    record = io.BytesIO()
    RecordWriter(record).write(event.SerializeToString())
    return record.getvalue()


def read_rows(path: Path, last_bytes: int = 1 << 30) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line cut short by a crash is left out.

    Args:
        last_bytes: number of bytes read, from the end of the file.
    """
    rows = []
    with open_plain(Path(path)) as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - last_bytes))
        text = file.read(last_bytes).decode("utf-8", "replace")
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
