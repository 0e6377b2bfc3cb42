"""The learner's side of one run, in which one worker of a role is killed with -9; prints what became of it as JSON.

Run by ``cells.py``, which says on standard input what to run, where, and which role to kill when.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from apexrl.api import run
from apexrl.config import Config, convert
from apexrl.config.placement import Listen, Placement, Ray, Redis
from apexrl.presets import unseen
from apexrl.run.observers import IdleObserver
from apexrl.run.status import RunStatus

PLACEMENTS: dict[str, type[Placement]] = {"redis": Redis, "listen": Listen, "ray": Ray}


class Killer(IdleObserver):
    """Kills the first worker of ``role`` that is seen at work when ``steps`` are made."""

    def __init__(self, role: str, steps: int) -> None:
        self._role, self._steps = role, steps
        self.killed: dict[str, Any] = {}

    def update(self, status: RunStatus) -> None:
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
    settings, where = told["settings"], told["where"]
    look = convert.override(Config(), {"env": "CartPole-v1"})
    config = unseen.start(look, "", settings["topology"], "default", [*settings, *where]).config
    placement = next((PLACEMENTS[name](**options) for name, options in where.items()), None)
    summary = run(convert.override(config, settings), observers=[killer], placement=placement).summary
    print(json.dumps({**summary, "killed": killer.killed}, default=str), flush=True)


if __name__ == "__main__":
    main()
