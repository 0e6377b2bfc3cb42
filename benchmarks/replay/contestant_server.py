"""The process of one contestant: reads a request a line, answers with a line of JSON.

    python benchmarks/replay/contestant_server.py tianshou  # then: {"do": "open", "shape": {...}, "fill_seconds": 20}

Each contestant has a process of its own, of whatever interpreter it needs, so no heap, thread pool or NumPy is shared.
Everything is timed in here; only requests and figures cross the pipe.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.replay.contestants import ENTRIES, Contestant, Shape, make
from benchmarks.replay.paced_writers import Rig
from benchmarks.replay.timed_contestant import Player, check


class Host:
    """Answers requests about one contestant."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._contestant: Contestant
        self._player: Player
        self._rig: Rig | None = None

    def versions(self) -> dict[str, str]:
        """Of the contestant's package first, then of what it stands on."""
        found = {}
        for package in ENTRIES[self._name].packages:
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                raise ModuleNotFoundError(f"{package} is not installed") from None
        return found | {"numpy": metadata.version("numpy"), "Python": platform.python_version()}

    def open(self, shape: dict[str, Any], fill_seconds: float) -> dict[str, Any]:
        versions, wanted = self.versions(), Shape(**shape)
        contestant = self._contestant = make(self._name, wanted)
        self._player = Player(contestant, wanted)
        filled = self._player.fill(fill_seconds)
        if wanted.writers:
            self._rig = Rig(self._player, contestant, wanted)
        return {
            "title": contestant.title,
            "versions": versions,
            "prioritized": contestant.prioritized,
            "returns": contestant.returns,
            "bytes_per_transition": contestant.bytes_per_transition,
            "filled": filled,
            "operations": list(self._player.operations()),
        }

    def rate(self, operation: str, seconds: float) -> float:
        return self._player.rate(operation, seconds)

    def window(self, writers: int, pace: float, seconds: float) -> dict[str, float]:
        assert self._rig is not None
        return self._rig.window(writers, pace, seconds)._asdict()

    def check(self, shape: dict[str, Any]) -> dict[str, Any]:
        versions, wanted = self.versions(), Shape(**shape)
        contestant = make(self._name, wanted)
        try:
            return {"versions": versions, "title": contestant.title, "wrong": check(contestant, wanted)}
        finally:
            contestant.close()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.set_inheritable(answers.fileno(), False)
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    host = Host(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(host, request.pop("do"))(**request)}
        except ModuleNotFoundError as error:
            answer = {"missing": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        print(json.dumps(answer), file=answers)
    os._exit(0)  # writers end with their pipes; a library's own shutdown is not waited for


if __name__ == "__main__":
    main()
