"""Limits the size of workers' logs, so that one that prints for ever does not fill the disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 10 << 20
"""Of one role's log over all its generations; the file before it may have as much again. What is printed between two
checks comes on top."""


def bound(path: Path, most: int = MOST_BYTES) -> None:
    """Put the end of a log that has become too long into ``NAME.log.1``, and begin it anew.

    Whoever writes it, simulators that a role has started among them, has it open to append, and goes on at the new end.
    What is written meanwhile is lost; what cannot be copied, on a full disk, too.
    """
    with suppress(OSError):
        size = path.stat().st_size
        if size <= most:
            return
        with suppress(OSError), path.open("rb") as log, Path(f"{path}.1").open("wb") as before:
            log.seek(size - most)
            before.write(log.read(most))
        os.truncate(path, 0)
