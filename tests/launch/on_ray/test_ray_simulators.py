"""What an environment has started ends with its actor, on a Ray of the run's own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from ray_environment import QUIET
from short_runs import Watcher

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.config.placement import Ray
from apexrl.launch import launch
from apexrl.run.status import RunStatus

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_simulators_die_with_their_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:  # as in test_ray_near.py
        before, lived = process.submit(kill_an_actor, tmp_path).result()
    after = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(before) == 2
    assert not lived
    assert len(after) > len(before)  # the next actor's
    deadline = time.monotonic() + 60.0
    while any(map(alive, after)):
        assert time.monotonic() < deadline, [pid for pid in after if alive(pid)]
        time.sleep(0.1)


def kill_an_actor(out: Path) -> tuple[list[int], list[int]]:
    """Simulators of an actor; and those that are there long after its death, while the run goes on."""
    pids = out / "pids"
    before: list[int] = []
    killed: list[float] = []
    lived: list[int] = []

    def act(watcher: Watcher, status: RunStatus) -> bool:
        actor = next((worker for worker in status.workers if worker.role == "actor"), None)
        if not killed and actor is not None and actor.pid and status.updates > 20:
            before.extend(pid for pid in map(int, pids.read_text().split()) if stat(pid)[1] == str(actor.pid))
            os.kill(actor.pid, signal.SIGKILL)
            killed.append(time.monotonic())
        if not killed or status.restarts["actor"] < 1:
            return False
        lived[:] = [pid for pid in before if alive(pid)]
        return not lived or time.monotonic() > killed[0] + 60.0

    settings = {
        "env": "apexrl.envs.faulty:SpawnsChild-v0",
        "out": str(out),
        "name": "run",
        "hidden": (16,),
        "batch_size": 8,
        "min_size": 64,
        "actors": 1,
        "envs_per_actor": 2,
        "eval_episodes": 1,
        "env_steps": 0,
        "minutes": 5.0,
    }
    config = override(Config(), settings)
    config = replace(config, env=replace(config.env, env_kwargs={"pid_file": str(pids)}))
    launch(config, [Watcher("", act)], placement=Ray("local"))
    return before, lived


def alive(pid: int) -> bool:
    return stat(pid)[0] not in "XZ"


def stat(pid: int) -> list[str]:
    """State, parent, group …; of nobody that is there: dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", ""]
