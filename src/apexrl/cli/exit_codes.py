"""The exit codes of ``apexrl``. ``tools/reference.py`` writes their table into docs/reference/run-folder.md."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
FOUND: Final = 3
HELD: Final = os.EX_TEMPFAIL
INTERRUPTED: Final = 130


class Meaning(NamedTuple):
    """What an exit code says, and whether a supervisor should repeat the command."""

    text: str
    repeat: str


EXIT_CODES: Final[Mapping[int, Meaning]] = {
    OK: Meaning("done; of a standby: the run has ended without it", "no"),
    FAILED: Meaning(
        "the run failed; a file of it cannot be read; or its last checkpoint, best weights, replay or summary could "
        "not be written; `compare`: a run failed; `sweep`: no trial came to its end; `status`, `stop`, `drain`, "
        "`scale`: there is no such run or host, or it did not happen within the time",
        "yes, a few times",
    ),
    USAGE: Meaning(
        "the command, or the settings of a run folder, cannot be understood, or an extra is not installed", "no"
    ),
    FOUND: Meaning("`apexrl doctor`: at least one cause was named", "no"),
    HELD: Meaning("another living process trains this run, or the host was drained from it (`apexrl drain`)", "later"),
    INTERRUPTED: Meaning("stopped by a signal, after checkpoint and summary", "yes, unless you stopped it"),
}
"""Every exit code of every command."""
