"""A file that has no name, for what processes write."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import IO


def unnamed_file() -> IO[bytes]:
    """A new file, unbuffered. It is in memory where the system can: some containers have no folder to write in.

    Raises:
        OSError: there is no room, or no folder for temporary files.
    """
    if hasattr(os, "memfd_create"):
        with suppress(OSError):  # a container may refuse it
            return open(os.memfd_create("apexrl"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
