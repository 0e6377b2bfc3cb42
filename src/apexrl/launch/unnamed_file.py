"""A file that has no name, for what processes write."""

from __future__ import annotations

import os
import tempfile
from typing import IO


def unnamed_file() -> IO[bytes]:
    """A new file, unbuffered: in memory where the system has such files, as a container may let nobody write elsewhere.

    Raises:
        OSError: there is no room, or no folder for temporary files.
    """
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("apexrl"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
