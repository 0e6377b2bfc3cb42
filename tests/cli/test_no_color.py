"""``NO_COLOR`` takes the colours from everything that is printed on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[1] / "report" / "recorded"
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
PANEL = """
from pathlib import Path
from apexrl.presets import preset
from apexrl.report.live_panel import LivePanel, panel
from apexrl.run.status import RunStatus
shown = panel()
assert isinstance(shown, LivePanel)
shown.started(preset("cartpole").config, Path("."))
shown.message("a warning", "warning")
shown.update(RunStatus(env_steps=5))
shown.finished({"stopped_by": "env_steps"})
"""


def on_terminal(program: list[str], **more: str) -> bytes:
    """What a Python program prints on a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **more}
    environment.pop("PYTHON_TYRO_ANSI_CODES", None)  # a command that another test has called in this process sets it
    with subprocess.Popen(
        [sys.executable, *program], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # EIO: the other end is closed
            while part := os.read(ours, 65536):
                shown += part
        process.wait(timeout=60)
    os.close(ours)
    return shown


@pytest.mark.parametrize(
    "program",
    [
        ["-m", "apexrl", "train", "cartpole", "--help"],
        ["-m", "apexrl.cli", "doctor", str(RECORDED / "gamma-0.1")],
        ["-c", PANEL],
    ],
    ids=["flags", "doctor", "panel"],
)
def test_nothing_has_a_colour(program: list[str]) -> None:
    assert COLOUR.search(on_terminal(program, NO_COLOR=""))
    assert not COLOUR.search(on_terminal(program, NO_COLOR="1"))
