"""Messages about workers that stand still, and stack dumps of them before they are killed."""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from typing import Final

DUMP_SECONDS: Final = 1.0
"""From the wish for a stack dump to the kill."""

START: Final = 3.0
"""Times ``--stall-timeout`` that a worker has for its beginning (ours: it imports, restores and compiles)."""

_SIGNAL: Final = signal.SIGUSR1
_STATES = {
    "T": ": its process is stopped (SIGSTOP)",
    "D": ": its process waits in the kernel, for a disk, a network file system or a device",
}


def hung_call(seconds: float | None) -> str:
    """Why a worker was killed whose environment did not return; its first line is a headline."""
    return (
        f"an environment call took longer than {seconds:g} s (--env-timeout)\n"
        "If its reset() or step() may take so long, raise --env-timeout; else look at what it waits for"
    )


def stood_still(limit: float, starting: bool, pid: int = 0) -> str:
    """Why a worker was killed whose loop did not go on; its first line is a headline.

    Args:
        limit: ``--stall-timeout``.
        starting: it had not begun to work.
        pid: to see what it is at; 0: it is elsewhere.
    """
    what = f"it stood still for {limit:g} s (--stall-timeout)"
    if starting:
        what = f"it did not begin to work within {START * limit:g} s ({START:g} times --stall-timeout)"
    state = _STATES.get(process_state(pid), "")
    return f"{what}{state}\nIf one turn may take so long (a compilation, a very large update), raise --stall-timeout"


def dump_on_request() -> None:
    """In a worker: ``ask_for_dump`` writes the stacks of all threads into its log, also while one of them keeps the
    interpreter to itself."""
    faulthandler.register(_SIGNAL, all_threads=True)


def ask_for_dump(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, _SIGNAL)


def process_state(pid: int) -> str:
    """A letter, as ``ps`` shows it: T is stopped, Z has ended; empty where there is none, or no way to know."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
