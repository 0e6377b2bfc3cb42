"""One run to its end: started, and started again as often as something kills its process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from apexrl.config import Config
from apexrl.sweep.run_process import ENDED, FAILED, HELD, INTERRUPTED, Request, StartedRun, request

Start = Callable[[Request, Path], StartedRun]
"""Starts a run; the path is where it prints."""

MOST_KILLS: Final = 5
"""Times that a run is resumed after something killed its process; then it has failed."""

_LONGEST_REASON: Final = 500  # characters
_LOG_BYTES: Final = 4096


class RunAttempts:
    """A run that goes on until it has ended, failed, or was interrupted.

    Args:
        config: with the name and the place of its folder.
        log_path: what it prints is appended there.
        stop_path: when this file exists, the run ends.
    """

    def __init__(self, config: Config, log_path: Path, stop_path: Path, start: Start) -> None:
        self.result: Literal["", "ended", "interrupted", "failed"] = ""
        """Empty: it goes on."""
        self.why = ""
        """It failed."""
        self._log_path = log_path
        self._kills = 0
        self._interrupted = False
        self._request = request(config, stop_path)
        self._start = start
        stop_path.unlink(missing_ok=True)
        self._run = start(self._request, log_path)

    def goes_on(self) -> bool:
        """See what has become of it; False: ``result`` says what."""
        code = None if self.result else self._run.poll()
        if code is None:
            return not self.result
        if code == ENDED:
            self.result = "ended"
        elif code == INTERRUPTED or self._interrupted:
            self.result = "interrupted"
        elif code == FAILED:
            self.result, self.why = "failed", self._last_words()
        else:  # it was killed, or another process holds its folder
            self._kills += 1
            if self._kills > MOST_KILLS:
                what = "another process held its folder" if code == HELD else "its process was killed"
                self.result, self.why = "failed", f"{what} {self._kills} times (status {code})"
            else:
                self._run = self._start(self._request, self._log_path)
        return not self.result

    def interrupt(self) -> None:
        """Stop it with a checkpoint."""
        self._interrupted = True
        self._run.interrupt()

    def kill(self) -> None:
        self._run.kill()
        self.result = "interrupted"

    def _last_words(self) -> str:
        """The last line that it has printed."""
        with suppress(OSError):
            text = self._log_path.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace")
            lines = [line for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1].strip()[:_LONGEST_REASON]
        return "it ended without a word"
