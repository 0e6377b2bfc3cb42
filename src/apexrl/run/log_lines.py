"""Log lines as JSON objects, for programs that collect logs."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from apexrl.run.status import Level

LogFormat = Literal["text", "json"]

MOST_CHARACTERS: Final = 64 * 1024
"""Of a text without an end of line that is kept; then it is written as a line of its own."""

_TRACEBACK = "Traceback (most recent call last)"


def json_line(level: Level, text: str, labels: Mapping[str, Any]) -> str:
    """One line: ``time`` (UTC), ``level``, the labels (``run``, ``host``, ``role``, ``generation`` …) and ``text``."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": now, "level": level, **labels, "text": text}, ensure_ascii=False)


class JsonStream(io.TextIOBase):
    """A text stream that writes whole lines as JSON lines. For any thread.

    Lines that are written at once, such as a traceback, become one; it has the level ``error``. What goes around this
    stream, from a simulator or a library in C, stays as it is.

    Args:
        stream: where the lines go.
        level: of other texts.
        labels: of every line.
    """

    def __init__(self, stream: TextIO, level: Level, labels: Mapping[str, Any]) -> None:
        self._stream, self._level, self._labels = stream, level, labels
        self._unended = ""
        self._writing = threading.Lock()

    def write(self, text: str, /) -> int:
        with self._writing:
            self._unended += text
            whole, newline, rest = self._unended.rpartition("\n")
            if newline or len(rest) > MOST_CHARACTERS:
                self._put(whole if newline else rest)
                self._unended = rest if newline else ""
        return len(text)

    def flush(self) -> None:
        with self._writing:
            self._put(self._unended)
            self._unended = ""
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def _put(self, text: str) -> None:
        if text.strip():
            level: Level = "error" if _TRACEBACK in text else self._level
            self._stream.write(json_line(level, text.rstrip(), self._labels) + "\n")
