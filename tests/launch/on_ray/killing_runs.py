"""Whole runs on a cluster in which a test kills processes in turn."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import ray
from ray.util import list_named_actors
from short_runs import Act, Watcher

from apexrl.config import Config
from apexrl.config.placement import Ray
from apexrl.launch import launch
from apexrl.run.status import RunStatus, WorkerStatus

SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "hidden": (16,),
    "batch_size": 8,
    "actors": 4,
    "envs_per_actor": 2,
    "pull_period": 5,  # these runs are short
    "env_timeout": 60.0,
    "checkpoint_seconds": 0.5,
    "eval_episodes": 2,
    "eval_envs": 2,
    "eval_period_seconds": 5.0,
    "env_steps": 0,
    "minutes": 12.0,
}
MORE = 60  # updates after the return of who was killed, to be seen to go on


MEMORIES = ("home", "shard", "group")


class Killer:
    """Kills the named workers, or processes that hold a group's memory (``home``, ``shard-0``, ``group-0``), in turn:
    each when those before it are back and the run went on."""

    def __init__(self, *names: str) -> None:
        self.left = list(names)
        self.killed: list[str] = []
        self.versions: list[int] = []
        self.workers: dict[str, WorkerStatus] = {}
        self.ended = False
        self._from = 0  # updates
        self._restarts: dict[str, int] = {}  # killed worker -> restarts before
        self._memories: dict[str, int] = {}  # killed memory -> its generation

    def __call__(self, watcher: Watcher, status: RunStatus) -> bool:
        self.versions.append(status.weights_version)
        if self.ended:  # it is asked again while the run ends, and workers stop
            return True
        self.workers = {worker.name: worker for worker in status.workers}
        back = all(self.workers[name].restarts > before for name, before in self._restarts.items())
        back &= all(newest(watcher.namespace, name) > before for name, before in self._memories.items())
        if not back or not all(worker.pid and worker.state != "starting" for worker in status.workers):
            self._from = status.updates  # others may make many while one begins
        if status.updates < self._from + MORE:
            return False
        if not self.left:
            self.ended = True
            return True
        name = self.left.pop(0)
        if name.partition("-")[0] in MEMORIES:
            self._memories[name] = newest(watcher.namespace, name)
            actor = ray.get_actor(f"{name}.{self._memories[name]}", watcher.namespace)
            pid = ray.get(actor.hello.remote(), timeout=60.0).pid
        else:
            self._restarts[name] = self.workers[name].restarts
            pid = self.workers[name].pid
        self.killed.append(name)
        self._from = status.updates
        os.kill(pid, signal.SIGKILL)
        return False


def newest(namespace: str, memory: str) -> int:
    """The newest generation of the process that holds a group's memory."""
    found = [one["name"] for one in list_named_actors(all_namespaces=True) if one["namespace"] == namespace]
    return max((int(name.rpartition(".")[2]) for name in found if name.startswith(f"{memory}.")), default=-1)


class InFolder(Watcher):
    """Knows the namespace of a run by its folder."""

    def started(self, config: Config, folder: Path) -> None:
        self._folder = folder

    def update(self, status: RunStatus) -> bool | None:
        note = self._folder / "ray.json"
        self.namespace = json.loads(note.read_text())["namespace"] if note.exists() else ""
        return bool(self.namespace) and super().update(status)


def run(address: str, config: Config, act: Act, **placement: Any) -> tuple[dict[str, Any], Watcher]:
    watcher = InFolder("", act)
    small = {"actor_cpus": 0.25, "shard_cpus": 0.25, "learner_cpus": 0.5}
    small |= {"inference_cpus": 0.25, "wait_seconds": 60.0}
    summary = launch(config, [watcher], placement=Ray(address, **{**small, **placement}))
    assert summary["stopped_by"] == "callback", watcher.texts
    if isinstance(act, Killer) and "home" not in act.killed:  # with whose memory the version goes
        assert act.versions == sorted(act.versions)
    return summary, watcher
