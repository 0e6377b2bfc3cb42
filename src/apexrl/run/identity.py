"""What a run is called where its hosts' metrics and logs meet."""

from __future__ import annotations

import re
from pathlib import Path


def host_part(run: str, host: str) -> str:
    """The name of the part of a ``run`` that works on ``host``: its configuration and folder have it."""
    return re.sub(r"[^\w.+=@-]", "-", f"{run}@{host}")


def run_of(name: str, folder: Path, host: str) -> str:
    """The run's name on the learner's host, whichever part of it this is."""
    ending = host_part("", host)
    return name.removesuffix(ending) if name.endswith(ending) and name != ending else folder.name
