"""``apexrl stop RUN``: ends a run in a folder, whose main process is on this machine."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from apexrl.cli.say import Say
from apexrl.cli.scale_run import how_it_ended, opened
from apexrl.errors import ConfigError
from apexrl.run import ownership

_LOOK_SECONDS: Final = 0.1


def stop(path: str | Path, wait_seconds: float = 60.0, console: Console | None = None) -> int:
    """Send SIGTERM to the process that trains the run in folder ``path``, and wait until it has let go of it.

    Returns:
        0 when nobody trains the run any more; 1 when somebody still does after ``wait_seconds``, or cannot be reached.

    Raises:
        ConfigError: it is no run folder, or the file system there knows no locks.
    """
    say, folder = Say(console), opened(path)
    who = ownership.introduced(folder.path)
    try:
        if not ownership.held(folder.path):
            return say(f"no process trains {path} now{how_it_ended(folder)}")
    except OSError as error:
        by = ownership.holder(folder.path)
        raise ConfigError(
            f"whether {path} is being trained cannot be seen ({error.strerror}). If it is, then by {by}: kill PID "
            "there ends it cleanly"
        ) from error
    if who is None or not who.here:
        found = ownership.holder(folder.path)
        return say(
            f"{path} is being trained by {found}, no process of yours on this machine: give the command there", 1
        )
    try:
        os.kill(who.pid, signal.SIGTERM)
    except OSError as error:
        return say(f"{path} is being trained by {who.words}, which cannot be told to end ({error.strerror})", 1)
    say(f"process {who.pid}, which trains {path}, was told to end")
    deadline = time.monotonic() + wait_seconds
    # It takes its name out before it lets go; another name is another process's.
    while ownership.held(folder.path) and ownership.introduced(folder.path) in (who, None):
        if not wait_seconds:
            return 0
        if time.monotonic() > deadline:
            return say(
                f"it still works after {wait_seconds:.0f} s: apexrl status {path}. The same command again ends it at "
                "once, and loses what was learned since the last checkpoint; where it does not, kill -9 "
                f"{who.pid} does",
                1,
            )
        time.sleep(_LOOK_SECONDS)
    return say(f"{path} has ended")
