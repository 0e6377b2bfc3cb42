"""Programs on a real Ray of several nodes: experience, weights and priorities cross; what dies costs itself alone."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.cluster_utils", reason="needs the extra ray", exc_type=ImportError)

import ray
from plain_roles import BATCH, Actor, Learner

from apexrl.config import ActorConfig, Config, StopConfig
from apexrl.errors import ConfigError, LinkError, NonFiniteError
from apexrl.launch.ledger import Base, Ledger
from apexrl.launch.ray import reception
from apexrl.launch.ray.actors import Hello
from apexrl.launch.ray.driver import Driver
from apexrl.launch.ray.reception import places
from apexrl.launch.ray.wishes import Wishes
from apexrl.launch.supervisor import Interrupts
from apexrl.run_folder import RunFolder
from apexrl.spec import Field
from apexrl.status import RunStatus
from apexrl.topologies.program import Program

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


Act = Callable[["Watcher", RunStatus], bool]


class Watcher:
    """Remembers, and may act on every status."""

    def __init__(self, namespace: str, act: Act | None) -> None:
        self.namespace = namespace
        self._act = act
        self.texts: list[str] = []
        self.seen: dict[str, Any] = {}
        self.status = RunStatus()

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


def program(config: Config, deeds: dict[str, str]) -> Program:
    whole = Program(config)
    replay = whole.replay(
        capacity=4000, fields={"action": Field((), "int64")}, kind="transition", min_size=32, samples_per_insert=0.0
    )
    weights = whole.weights(4000)
    whole.role(Learner, replay=replay, weights=weights, restarts=5)
    whole.role(Actor, count=config.actor.actors, replay=replay, weights=weights, deeds=deeds, restarts=5)
    return whole


def run(address: str, out: Path, deeds: dict[str, str], act: Act | None = None) -> Watcher:
    """Four actors in two groups, for at most eight minutes."""
    config = Config(name="run", out=str(out), actor=ActorConfig(actors=4), stop=StopConfig(minutes=8.0))
    wishes = Wishes(address=address, actor_cpus=0.5, shard_cpus=0.5, learner_cpus=1.0, replay_shards=2)
    folder = RunFolder.create(config)
    with Interrupts() as interrupts, closing(Driver(config, wishes, interrupts)) as driver:
        watcher = Watcher(driver.namespace, act)
        ledger = Ledger(config, folder, [watcher], Base(), time.monotonic())
        driver.settle(places(config, wishes, 2))
        driver.run(program(config, deeds), ledger)
    ledger.close()
    return watcher


def test_a_worker_and_a_shard_are_killed_and_the_run_goes_on(cluster: str, tmp_path: Path) -> None:
    """Everything crosses: steps, batches, priorities, weights, counters, messages. A killed actor is followed by its
    next generation; a killed shard costs what it held, and is counted."""
    killed: list[int] = []

    def act(watcher: Watcher, status: RunStatus) -> bool:
        seen = watcher.seen
        if not killed and set(seen.get("slots", {})) == {"0", "1", "2", "3"} and status.restarts["actor"] >= 1:
            shard = ray.get(ray.get_actor("shard-1.0", watcher.namespace).hello.remote())
            killed.append(shard.pid)
            os.kill(shard.pid, signal.SIGKILL)
        # until items of the new shard can be sampled
        return bool(killed) and status.restarts["shard"] == 1 and seen["lost_shards"] == 1 and seen["shards"] == 2

    watcher = run(cluster, tmp_path, {"0.0": "kill"}, act)
    status, seen = watcher.status, watcher.seen
    assert killed
    assert status.restarts["shard"] == 1
    assert status.restarts["actor"] >= 1 + 2  # the killed one, and those of the lost group
    assert status.restarts["learner"] == 0
    assert status.dropped["lost_items"] > 0
    assert seen["lost_items"] > 0
    assert seen["applied"] > 0
    assert status.updates == seen["sampled"] // BATCH
    assert any(text.startswith("actor-0: ") and "starting it again" in text for text in watcher.texts)
    assert any("shard-1 was lost with" in text for text in watcher.texts)
    assert not ray.is_initialized()


def test_what_another_life_would_repeat_ends_the_run(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="actor-2: the loss is nan"):
        run(cluster, tmp_path, {"2.0": "not finite"})


def test_what_the_cluster_does_not_have_is_said_within_seconds(cluster: str) -> None:
    config = Config(actor=ActorConfig(actors=2))
    wishes = Wishes(address=cluster, learner_gpus=3.0, replay_shards=1, wait_seconds=1.0)
    with Interrupts() as interrupts, closing(Driver(config, wishes, interrupts)) as driver:
        began = time.monotonic()
        with pytest.raises(ConfigError, match=r"wants 4 CPU, 3 GPU in 2 places .* with 2 CPU, 0 GPU.*--learner-gpus"):
            driver.probe()
        assert time.monotonic() - began < 60.0  # and not for ever


def test_more_shards_than_actors_are_refused(cluster: str) -> None:
    config = Config(actor=ActorConfig(actors=2))
    wishes = Wishes(cluster, replay_shards=3)
    refused = pytest.raises(ConfigError, match="--replay-shards 3 want an actor each")
    with Interrupts() as interrupts, closing(Driver(config, wishes, interrupts)) as driver, refused:
        driver.probe()


def test_other_versions_on_a_node_are_refused_by_name() -> None:
    same = Hello("node7", "id", 1, {name: version for name, version in reception.versions().items() if version})
    reception.compare(same)
    with pytest.raises(ConfigError, match=r"node node7 has torch 1\.0, and this process has torch \d.*same versions"):
        reception.compare(replace(same, versions={**same.versions, "torch": "1.0"}))
    without = {name: version for name, version in same.versions.items() if name != "torch"}
    with pytest.raises(ConfigError, match="torch not installed"):
        reception.compare(replace(same, versions=without))


@pytest.mark.parametrize("address", ["nonsense", "ray://127.0.0.1:10001", ":6379", "host:port"])
def test_what_is_no_address_of_a_cluster_is_refused(address: str) -> None:
    with Interrupts() as interrupts, pytest.raises(ConfigError, match="say auto, local, or HOST:PORT"):
        Driver(Config(), Wishes(address), interrupts)


def test_nobody_at_an_address_is_said_with_what_to_do() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with Interrupts() as interrupts, pytest.raises(LinkError, match=f"{address}.*ray start --head"):
        Driver(Config(), Wishes(address), interrupts)
