"""Books that do not rest on anybody's counters: what actors did, beside what the learner's replay holds.

The environment writes down every observation with the action taken on it, in a file of its own that outlives kill -9.
Observations of CartPole are as good as unique, so afterwards each item of the saved replay is found in one place of one
file, or it is not one that an actor wrote.
"""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

ENV = "experience_audit:AuditCartPole-v0"
FOLDER, WHO = "AUDIT_FOLDER", "AUDIT_WHO"
"""Environment variables: where the files go, and who writes; without them nothing is written."""

_ROW = 5  # float32: observation 4, action
_BATCH = 4096
_MOST_BATCHES = 20_000
_numbers = count()


class AuditCartPole(CartPoleEnv):
    """CartPole that keeps a record of its own. ``seconds``: how long a step takes where steps are written down."""

    def __init__(self, seconds: float = 0.0, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self._seconds = seconds
        self._seen = b""
        self._file = -1
        if WHO in os.environ:
            path = Path(os.environ[FOLDER]) / f"{os.environ[WHO]}.{os.getpid()}.{next(_numbers)}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self._seen = observation.tobytes()
        return observation, info

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._file >= 0:
            os.write(self._file, self._seen + np.float32(action).tobytes())  # the kernel's at once
            time.sleep(self._seconds)
        stepped = super().step(action)
        self._seen = stepped[0].tobytes()
        return stepped

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        super().close()


gym.register("AuditCartPole-v0", entry_point="experience_audit:AuditCartPole", max_episode_steps=500)


class Stream(NamedTuple):
    """One generation of one environment."""

    who: str
    made: int  # steps
    committed: int  # of them, found in the replay
    tail: int  # not committed, after the last that was
    holes: int  # not committed, before it
    lead: int  # of them, before the first that was


class Books(NamedTuple):
    streams: list[Stream]
    strangers: int  # items that nobody made
    twice: int  # items that were committed more than once

    def total(self, who: str = "") -> Stream:
        """Of all whose name begins like this."""
        mine = [stream for stream in self.streams if stream.who.startswith(who)]
        return Stream(who, *(sum(stream[field] for stream in mine) for field in range(1, 6)))


def close_books(folder: Path, items: NDArray[np.float32]) -> Books:
    """Find every item, float32 [N, 5], in the files of ``folder``."""
    made = {path.name: _whole_rows(path) for path in sorted(folder.iterdir())}
    names = [name for name, rows in made.items() if len(rows)]
    sizes = [len(made[name]) for name in names]
    places = _as_keys(np.concatenate([np.empty((0, _ROW), np.float32), *(made[name] for name in names)]))
    wanted, times = np.unique(_as_keys(items), return_counts=True)
    found = np.isin(places, wanted)
    streams, begin = [], 0
    for name, size in zip(names, sizes, strict=True):
        mine = found[begin : begin + size]
        begin += size
        committed = int(mine.sum())
        first, until = (int(np.flatnonzero(mine)[0]), int(np.flatnonzero(mine)[-1]) + 1) if committed else (0, 0)
        streams.append(Stream(name, size, committed, size - until, until - committed, first))
    strangers = int((~np.isin(wanted, places)).sum())
    return Books(streams, strangers, int((times - 1).sum()))


def all_items(snapshot: Path) -> NDArray[np.float32]:
    """Observation and action of every item in a saved replay, float32 [N, 5]."""
    from apexrl.replay import Replay

    replay = Replay.load(snapshot)
    try:
        replay.set_limiter(min_size=1, samples_per_insert=0.0)
        size = len(replay)
        rows: dict[int, NDArray[np.float32]] = {}
        for _ in range(_MOST_BATCHES):
            if len(rows) == size:
                return np.stack(list(rows.values()))
            batch = replay.sample(_BATCH)
            joined = np.column_stack([batch.data["observation"], batch.data["action"]]).astype(np.float32)
            rows.update(zip(batch.keys.tolist(), joined, strict=True))
            replay.update_priorities(batch.keys, np.zeros(_BATCH))  # whoever was not seen yet is drawn rather
        raise RuntimeError(f"{len(rows)} of {size} items after {_MOST_BATCHES} batches")
    finally:
        replay.close()


def _whole_rows(path: Path) -> NDArray[np.float32]:
    values = np.fromfile(path, np.float32)
    return values[: len(values) // _ROW * _ROW].reshape(-1, _ROW)


def _as_keys(rows: NDArray[np.float32]) -> NDArray[np.void]:
    return np.ascontiguousarray(rows, np.float32).view(np.dtype((np.void, 4 * _ROW))).reshape(-1)
