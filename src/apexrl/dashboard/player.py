"""Plays greedy episodes with the newest weights of a run, for whoever looks."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PIL import Image

from apexrl.evaluation.loaded_agent import LoadedAgent, load_agent, trusted_config
from apexrl.evaluation.shown_episodes import Moment, Picture, drawn, frames_per_second, moments
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder

if TYPE_CHECKING:
    from apexrl.config import Config

AGAIN_SECONDS: Final = 5.0
"""After an error."""
UNSEEN_SECONDS: Final = 3.0
"""Without a look, after which the player rests."""
MOST_PER_SECOND: Final = 30.0
LONGEST_STEPS: Final = 20_000
"""Of an episode."""
_QUALITY: Final = 80
_SEED: Final = 1_000_000_007  # training uses others


class Player:
    """A thread that plays while somebody looks.

    Args:
        name: of the run, as the page calls it.
    """

    def __init__(self, folder: RunFolder, config: Config, name: str) -> None:
        self.name = name
        self._folder, self._config = folder, config
        self._looked_at = -UNSEEN_SECONDS
        self._stopped = threading.Event()
        self._newest_picture = (0, b"")
        self._said: dict[str, Any] = {"run": name, "weights": "", "episode": 0, "last_return": None, "trouble": ""}
        self._thread = threading.Thread(target=self._run, name="player", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Play no more. May be called twice."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def state(self) -> dict[str, Any]:
        """What is played, and what is wrong."""
        return dict(self._said)

    def newest_picture(self) -> tuple[int, bytes]:
        """The number of the newest picture, and it as JPEG; 0 and nothing before the first. Does not wait."""
        self._looked_at = time.monotonic()
        return self._newest_picture

    def _run(self) -> None:
        loaded, of = None, None
        while not self._stopped.is_set():
            if time.monotonic() - self._looked_at > UNSEEN_SECONDS:
                self._stopped.wait(0.1)
                continue
            try:
                newest = self._newest()
                if newest is None:
                    self._said["trouble"] = "the run has no weights yet"
                    self._stopped.wait(1.0)
                    continue
                if loaded is None or newest != of:
                    loaded, of = self._load(), newest
                    self._said.update(weights=loaded.checkpoint.name if loaded.checkpoint else "", trouble="")
                self._episode(loaded)
            except Exception as error:  # whatever an environment raises; a checkpoint that was replaced meanwhile
                self._said["trouble"] = f"{type(error).__name__}: {error}"[:500]
                self._stopped.wait(AGAIN_SECONDS)

    def _newest(self) -> tuple[Path, int] | None:
        """The newest weights: of the last checkpoint, or of the best evaluation where that is newer or alone."""
        folder = self._folder.checkpoints
        found = [path for path in (checkpoint.latest(folder), checkpoint.best(folder)) if path is not None]
        times = [(path.stat().st_mtime_ns, path) for path in found]
        return None if not times else (max(times)[1], max(times)[0])

    def _load(self) -> LoadedAgent:
        newest = self._newest()
        assert newest is not None
        return load_agent(self._folder, str(newest[0]), config=self._config)

    def _episode(self, loaded: LoadedAgent) -> None:
        seconds = 1.0 / min(MOST_PER_SECOND, frames_per_second(self._config.env))
        self._said["episode"] += 1
        line: list[float] = []
        shown: Iterator[Moment] = moments(loaded, self._config, _SEED + self._said["episode"])
        due = time.monotonic()
        with closing(shown):  # type: ignore[type-var]  # a generator
            for moment in shown:
                self._show(drawn(moment, line, f"episode {self._said['episode']}"))
                self._said["trouble"] = ""
                if moment.ended:
                    self._said["last_return"] = round(moment.episode_return, 6)
                    self._stopped.wait(1.0)
                    return
                if moment.step >= LONGEST_STEPS:  # newer weights play the next one
                    return
                due = max(due + seconds, time.monotonic() - seconds)
                if self._stopped.wait(max(0.0, due - time.monotonic())):
                    return
                if time.monotonic() - self._looked_at > UNSEEN_SECONDS:
                    return

    def _show(self, picture: Picture) -> None:
        kept = io.BytesIO()
        Image.fromarray(picture).save(kept, "JPEG", quality=_QUALITY)
        self._newest_picture = (self._newest_picture[0] + 1, kept.getvalue())


def player_of(path: str | Path, name: str, trust: Sequence[str] = ()) -> Player:
    """A player of the run in ``path``, not yet started.

    Raises:
        ConfigError: there is no run, or its settings name code that is not trusted.
    """
    folder = RunFolder.open(path)
    return Player(folder, trusted_config(folder, trust), name)
