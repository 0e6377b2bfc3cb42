"""The learner's side of one run, in which one worker of a role is killed with -9; prints what became of it as JSON.

Run by ``cells.py``, with what ``apexrl.train`` is to be told on standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import apexrl
from apexrl.config.placement import Ray
from apexrl.run.status import RunStatus


class Killer:
    """Kills the first worker of ``role`` that is seen at work when ``steps`` are made."""

    def __init__(self, role: str, steps: int) -> None:
        self._role, self._steps = role, steps
        self.killed: dict[str, Any] = {}

    def __call__(self, status: RunStatus) -> None:
        if self.killed or status.env_steps < self._steps:
            return
        for worker in status.workers:
            if worker.role == self._role and worker.pid and worker.state not in ("starting", "restarting", "failed"):
                self.killed = {"worker": worker.name, "env_steps": status.env_steps, "updates": status.updates}
                os.kill(worker.pid, signal.SIGKILL)
                return


def main() -> None:
    told = json.load(sys.stdin)
    killer = Killer(told["role"], told["steps"])
    if "ray" in told["where"]:
        told["where"]["ray"] = Ray(**told["where"]["ray"])
    run = apexrl.train(env="CartPole-v1", callbacks=[killer], show=False, **told["where"], **told["settings"])
    print(json.dumps({**run.summary, "killed": killer.killed}, default=str), flush=True)


if __name__ == "__main__":
    main()
