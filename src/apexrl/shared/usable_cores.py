"""How many cores this process may use."""

from __future__ import annotations

import os
import sys


def usable_cores() -> int:
    """Those that the system lets this process run on; where it does not say (macOS), all of the machine."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
