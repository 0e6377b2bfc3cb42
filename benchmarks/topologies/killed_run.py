"""One CartPole run in which workers of one role are killed with SIGKILL; prints what became of it as a JSON object.

    python benchmarks/topologies/killed_run.py seed inference_server FOLDER '{}'      # run by kills.py

Nobody is killed with the role ``–``, which tells the roles that there are.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from apexrl import presets
from apexrl.api import run
from apexrl.config import convert
from apexrl.errors import ApexrlError
from apexrl.run.observers import IdleObserver
from apexrl.run.status import RunStatus

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.topologies.kills import FORK_SERVER, NOBODY, SUPERVISOR

FIRST, APART = 8_000, 8_000  # environment steps until the first kill, and between kills
KILLS = {FORK_SERVER: 1, SUPERVISOR: 1, NOBODY: 0}  # others: 3


class Killer(IdleObserver):
    """Kills a worker of ``role`` at certain environment steps."""

    def __init__(self, role: str) -> None:
        self.kills: list[dict[str, Any]] = []
        self.roles: list[str] = []
        self.wanted = KILLS.get(role, 3)
        self.last = 0.0  # monotonic seconds
        self._role = role
        self._pids: set[int] = set()

    def update(self, status: RunStatus) -> None:
        self.roles = list(dict.fromkeys([*self.roles, *(worker.role for worker in status.workers)]))
        due = FIRST if not self.kills else self.kills[-1]["env_steps"] + APART
        if status.phase != "training" or len(self.kills) == self.wanted or status.env_steps < due:
            return
        if (pid := self._victim(status)) is None:
            return
        self._pids.add(pid)
        self.kills.append({"pid": pid, "env_steps": status.env_steps, "updates": status.updates})
        self.last = time.monotonic()
        os.kill(pid, signal.SIGKILL)

    def _victim(self, status: RunStatus) -> int | None:
        """Whose turn it is among those who are at work; None: nobody is."""
        if self._role == SUPERVISOR:
            print(json.dumps({"roles": self.roles, "kills": [status.env_steps], "end": "", "wanted": 1}), flush=True)
            return os.getpid()
        if self._role == FORK_SERVER:
            anybody = next(worker.pid for worker in status.workers if worker.pid)
            return int(Path(f"/proc/{anybody}/stat").read_text().rpartition(")")[2].split()[1])
        able = [
            w for w in status.workers if w.role == self._role and w.state not in ("starting", "restarting", "failed")
        ]
        pids = [worker.pid for worker in able if worker.pid and worker.pid not in self._pids]
        return pids[len(self.kills) % len(pids)] if pids else None


def main() -> None:
    topology, role, out, more = sys.argv[1:]
    killer = Killer(role)
    end: dict[str, Any]
    config = presets.with_topology(presets.preset("cartpole").config, topology)
    config = convert.override(config, {"out": out, "env_steps": 1_000_000, "minutes": 5.0, **json.loads(more)})
    try:
        summary = run(config, observers=[killer]).summary
        end = {
            "end": summary["stopped_by"],
            "final": summary["final_eval_return"],
            "env_steps": summary["env_steps"],
            "restarts": summary["restarts"],
        }
    except ApexrlError as error:
        seconds = time.monotonic() - killer.last
        first = str(error).strip().splitlines()[0]
        end = {"end": "error", "error": f"{type(error).__name__}: {first}", "error_seconds": seconds}
    print(json.dumps({"roles": killer.roles, "kills": killer.kills, "wanted": killer.wanted, **end}), flush=True)


if __name__ == "__main__":
    main()
