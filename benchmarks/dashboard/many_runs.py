"""A folder of many runs, one of them live with many workers, and the dashboard that shows them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "dashboard"))

from run_folders import append, evaluation_row, make_run, rows, status_row, write_workers

LIVE: Final = "live"
_STATUS_SECONDS: Final = 0.5
"""Between two status lines of the live run, as a run writes them in its first minutes."""
_WORKERS_SECONDS: Final = 10.0


def make_runs(folder: Path, ended: int, workers: int) -> Path:
    """``ended`` runs of an hour each, and a live one; returns the live one's folder."""
    for number in range(ended):
        agent = ("dqn", "c51", "ppo", "sac")[number % 4]
        make_run(folder, f"run-{number:03d}", rows(360), ended="env_steps", seed=number, agent=agent)
    live = make_run(folder, LIVE, rows(360), agent="dqn")
    write_workers(live, workers)
    return live


@contextmanager
def growing(live: Path, workers: int) -> Iterator[None]:
    """The live run's files grow as those of a run do, until the end of the block."""
    ended = threading.Event()

    def grow() -> None:
        turn = 0
        while not ended.wait(_STATUS_SECONDS):
            turn += 1
            append(live, [status_row(360 + turn)] + [evaluation_row(360 + turn, 2.0 * turn)] * (turn % 10 == 0))
            if turn % round(_WORKERS_SECONDS / _STATUS_SECONDS) == 0:
                write_workers(live, workers)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(20)


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, str]]:
    """``apexrl dashboard`` as a user starts it: its process, and the address of its page."""
    command = [sys.executable, "-m", "apexrl.cli", "dashboard", str(folder), "--address", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if " is shown at " not in line:
            raise SystemExit(f"the dashboard did not start: {line}")
        yield server.pid, line.split(" is shown at ")[1].split()[0]
    finally:
        server.kill()  # it may be stopped
        server.wait()
