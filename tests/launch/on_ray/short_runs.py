"""Short runs of plain roles on a cluster, for tests: a learner and actors in groups, watched by a callback."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import ray
from plain_roles import Actor, Learner

from apexrl.config import ActorConfig, Config, StopConfig
from apexrl.config.placement import Ray
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.ray.driver import Driver
from apexrl.launch.ray.group_plan import most_actors, plan
from apexrl.launch.resumed_from import Base
from apexrl.launch.run_ledger import Ledger
from apexrl.run.status import RunStatus
from apexrl.spec import Field
from apexrl.topologies.program import Program
from new_folders import new_folder

Act = Callable[["Watcher", RunStatus], bool]


class Watcher:
    """Remembers, and may act on every status."""

    def __init__(self, namespace: str, act: Act | None) -> None:
        self.namespace = namespace
        self._act = act
        self.texts: list[str] = []
        self.seen: dict[str, Any] = {}
        self.status = RunStatus()
        self.summary: dict[str, Any] = {}

    def started(self, config: Config, folder: Path) -> None: ...

    def update(self, status: RunStatus) -> bool | None:
        self.status = status
        return self._act is not None and self._act(self, status)

    def event(self, kind: str, values: dict[str, Any]) -> None:
        if kind == "seen":
            self.seen = values

    def message(self, text: str, level: str = "info") -> None:
        self.texts.append(text)

    def finished(self, summary: dict[str, Any]) -> None: ...

    def said(self, words: str) -> bool:
        return any(words in text for text in self.texts)

    def where(self, shard: str) -> str:
        """The node of a shard's newest generation."""
        found = ray.util.list_named_actors(all_namespaces=True)
        known = [one["name"] for one in found if one["namespace"] == self.namespace]  # another run may not be gone yet
        generations = [int(name.rpartition(".")[2]) for name in known if name.startswith(f"{shard}.")]
        actor = ray.get_actor(f"{shard}.{max(generations)}", self.namespace)
        return str(ray.get(actor.hello.remote(), timeout=60.0).node)


def program(config: Config, deeds: dict[str, str], learner: type = Learner) -> Program:
    whole = Program(config)
    replay = whole.replay(
        capacity=4000, fields={"action": Field((), "int64")}, kind="transition", min_size=32, samples_per_insert=0.0
    )
    weights = whole.weights(4000)
    whole.role(learner, name="learner", replay=replay, weights=weights, restarts=5)
    whole.role(Actor, count=most_actors(config), replay=replay, weights=weights, deeds=deeds, restarts=5, moves=True)
    return whole


def run(
    address: str,
    out: Path,
    deeds: dict[str, str],
    act: Act | None = None,
    actor_cpus: float = 0.5,
    actors: tuple[int, int] = (4, 4),
    shards: int = 2,
    stall_timeout: float = 300.0,
    learner: type = Learner,
) -> Watcher:
    """``actors`` at first and at most, in groups with a shard each, for at most eight minutes."""
    own = ActorConfig(actors=actors[0], actor_slots=actors[1])
    config = Config(name="run", out=str(out), actor=own, stop=StopConfig(minutes=8.0), stall_timeout=stall_timeout)
    placement = Ray(address=address, actor_cpus=actor_cpus, shard_cpus=0.5, learner_cpus=1.0, replay_shards=shards)
    folder = new_folder(config)
    with Interrupts() as interrupts, closing(Driver(config, placement, interrupts)) as driver:
        watcher = Watcher(driver.namespace, act)
        ledger = Ledger(config, folder, [watcher], Base(), time.monotonic())
        driver.settle(plan(config, placement, 2))
        driver.run(program(config, deeds, learner), ledger)
    ledger.close()
    watcher.summary = json.loads(folder.summary_path.read_text())
    return watcher
