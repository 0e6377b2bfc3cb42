"""Real sweeps of CartPole with tiny runs, by the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WORDS = ("cartpole", "--actors", "1", "--envs-per-actor", "4", "--eval-episodes", "2", "--eval-envs", "2",
         "--eval-period-seconds", "0.2", "--hidden", "16", "--min-size", "100", "--capacity", "5000",
         "--batch-size", "16", "--checkpoint-seconds", "0.2", "--stop-at-return", "none")  # fmt: skip


def started(cwd: Path, *words: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "apexrl.cli", "sweep", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(line, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen[str], seconds: float = 900.0) -> str:
    """Wait for a sweep that ends well; returns what it printed."""
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, output
    return output


def wait_until(condition: Callable[[], object], what: str, seconds: float = 400.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.05)


def checkpoints(run: Path) -> list[Path]:
    """Those of something learned."""
    found = (run / "checkpoints").glob("generation-*.safetensors")
    return sorted(path for path in found if not path.stem.endswith("-000000000"))


def processes_at(folder: Path) -> list[int]:
    """Processes of this machine whose command or working files name ``folder``."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            at_work = any(str(folder) in os.readlink(link) for link in (proc / "fd").iterdir())
        except OSError:
            continue
        if at_work:
            found.append(int(proc.name))
    return [pid for pid in found if pid != os.getpid()]


def holder(folder: Path) -> int:
    """The process that has locked a folder."""
    return int(json.loads((folder / "lock").read_text())["pid"])


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
