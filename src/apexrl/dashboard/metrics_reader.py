"""Reads a run's ``metrics.jsonl`` as it grows, and keeps a bounded number of its rows."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from apexrl.errors import SnapshotError
from apexrl.run.atomic_files import open_plain

MOST_ROWS: Final = 400
"""Of a kind that are kept, up to twice as many; of more, evenly spaced ones."""
MOST_MESSAGES: Final = 200
MOST_NAMES: Final = 400
"""Metrics of one row."""

_CHUNK: Final = 1 << 20  # bytes
_LONGEST_ROW: Final = 1 << 20
_LONGEST_TEXT: Final = 2000  # characters
_ROW_BYTES: Final = 900  # of a status row, roughly: how many of a large file are read is chosen by it
_STATUS: Final = b'{"kind": "status"'
_LARGEST: Final = 1e300

Row = dict[str, Any]


class ThinnedRows:
    """Rows of which every second is let go whenever there are twice ``MOST_ROWS``."""

    def __init__(self, stride: int = 1) -> None:
        self.rows: list[Row] = []
        self.stride = stride
        """One row in so many is kept."""
        self._seen = 0

    def next_is_kept(self) -> bool:
        """Count a row; whether ``keep`` should get it."""
        self._seen += 1
        return (self._seen - 1) % self.stride == 0

    def keep(self, row: Row) -> None:
        self.rows.append(row)
        if len(self.rows) >= 2 * MOST_ROWS:
            self.rows = self.rows[::2]
            self.stride *= 2


class MetricsReader:
    """The rows of one ``metrics.jsonl``, which may grow, be cut, be replaced or be gone. For any thread.

    A call of ``refresh`` reads what was added since the last one. Of a file that is already large only some rows are
    decoded.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading = threading.Lock()
        self.epoch = 0
        """Rises when the file was read anew: what was there before may be gone."""
        self._identity: tuple[int, int] | None = None
        self._forget()

    def _forget(self, size: int = 0) -> None:
        self._offset = 0
        stride = 1
        while size / _ROW_BYTES / stride > 2 * MOST_ROWS:
            stride *= 2
        self.status = ThinnedRows(stride)
        self.evaluations = ThinnedRows()
        self.tuning = ThinnedRows()
        self.messages: deque[Row] = deque(maxlen=MOST_MESSAGES)
        self.last: Row = {}
        """The newest status."""
        self.finals: dict[str, Row] = {}
        """Final evaluations by weights: ``best``, ``last``."""
        self.lag: dict[int, int] = {}
        """Steps learned from by their policy lag, of all rows that were decoded."""

    def refresh(self) -> None:
        """Read what is new. A file that cannot be read counts as empty."""
        with self._reading:
            try:
                self._refresh()
            except (OSError, SnapshotError):
                if self._identity is not None:
                    self._identity = None
                    self.epoch += 1
                    self._forget()

    def _refresh(self) -> None:
        with open_plain(self._path) as file:
            found = os.fstat(file.fileno())
            identity = (found.st_dev, found.st_ino)
            if identity != self._identity or found.st_size < self._offset:
                self.epoch += self._identity is not None
                self._identity = identity
                self._forget(found.st_size)
            if found.st_size <= self._offset:
                return
            file.seek(self._offset)
            rest, newest = b"", b""
            while chunk := file.read(_CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(_STATUS):
                        newest = line
                    self._take(line)
                self._offset += sum(map(len, lines)) + len(lines)
                if len(rest) > _LONGEST_ROW:  # no row of ours: skip to its end
                    self._offset += len(rest)
                    rest = b""
            if newest and (row := _decoded(newest)) is not None:
                self.last = _status(row)

    def _take(self, line: bytes) -> None:
        if len(line) > _LONGEST_ROW or (line.startswith(_STATUS) and not self.status.next_is_kept()):
            return
        row = _decoded(line)
        if row is None:
            return
        kind = row.get("kind")
        if kind == "status":
            if not line.startswith(_STATUS):
                if not self.status.next_is_kept():
                    return
                self.last = _status(row)
            self.status.keep(_status(row))
            for least, count in _counts(row.get("policy_lag_histogram")):
                self.lag[least] = self.lag.get(least, 0) + count
        elif kind == "evaluation" and row.get("final"):
            self.finals[str(row.get("weights", "best"))[:16]] = _evaluation(row)
        elif kind == "evaluation":
            if self.evaluations.next_is_kept():
                self.evaluations.keep(_evaluation(row))
        elif kind == "tuning":
            if self.tuning.next_is_kept():
                self.tuning.keep(_numbers(row))
        elif kind == "message":
            level = str(row.get("level", "info"))[:16]
            text = str(row.get("text", ""))[:_LONGEST_TEXT]
            self.messages.append({**_numbers(row), "level": level, "text": text})


def newest_status(path: Path, last_bytes: int = 1 << 16) -> Row:
    """The last status of a ``metrics.jsonl``, from its end alone; empty: there is none."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))
            tail = file.read(last_bytes)
    except (OSError, SnapshotError):
        return {}
    *lines, _ = tail.split(b"\n")  # what follows the last end of line is not yet whole
    for line in reversed(lines):
        if b'"status"' in line and (row := _decoded(line)) is not None and row.get("kind") == "status":
            return _status(row)
    return {}


def _decoded(line: bytes) -> Row | None:
    try:
        row = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def finite(value: Any) -> float | int | None:
    """A number that JSON knows; None: it is none."""
    return value if type(value) in (int, float) and -_LARGEST < value < _LARGEST else None


def _numbers(row: Mapping[str, Any]) -> Row:
    """Those values of a decoded row that are finite numbers. Many rows come through here."""
    if len(row) > MOST_NAMES:
        row = dict(list(row.items())[:MOST_NAMES])
    return {
        name: value
        for name, value in row.items()
        if (type(value) is float or type(value) is int) and -_LARGEST < value < _LARGEST
    }


def _status(row: Mapping[str, Any]) -> Row:
    return {**_numbers(row), "phase": str(row.get("phase", ""))[:16]}


def _evaluation(row: Mapping[str, Any]) -> Row:
    returns = row.get("returns")
    each = [value for one in returns[:1000] if (value := finite(one)) is not None] if isinstance(returns, list) else []
    return _numbers(row) | ({"low": min(each), "high": max(each)} if each else {})


def _counts(histogram: Any) -> Iterator[tuple[int, int]]:
    """Least lag of a bin and steps, of what is one."""
    if not isinstance(histogram, dict) or len(histogram) > 256:
        return
    for least, count in histogram.items():
        if str(least).isdecimal() and len(str(least)) < 16 and isinstance(number := finite(count), int):
            yield int(least), number
