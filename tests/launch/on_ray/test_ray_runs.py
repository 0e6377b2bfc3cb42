"""Programs on a real Ray of several nodes: experience, weights and priorities cross; what dies costs itself alone."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from plain_roles import BATCH
from short_runs import Watcher, run

from apexrl.agents import with_agent
from apexrl.config import ActorConfig, Config
from apexrl.config.convert import override
from apexrl.config.placement import Ray
from apexrl.errors import ConfigError, LinkError, NonFiniteError
from apexrl.launch import launch
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.ray import preflight
from apexrl.launch.ray.driver import Driver
from apexrl.launch.ray.ray_actors import Hello
from apexrl.launch.ray.role_output import MOST_BYTES
from apexrl.presets import with_topology
from apexrl.run.status import RunStatus

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.mark.cluster
def test_a_worker_and_a_shard_are_killed_and_the_run_goes_on(cluster: str, tmp_path: Path) -> None:
    """Everything crosses: steps, batches, priorities, weights, counters, messages, what roles print. A killed actor is
    followed by its next generation; a killed shard costs what it held, and is counted."""
    killed: list[int] = []

    def act(watcher: Watcher, status: RunStatus) -> bool:
        seen = watcher.seen
        if not killed and set(seen.get("slots", {})) == {"0", "1", "2", "3"} and status.restarts["actor"] >= 1:
            shard = ray.get(ray.get_actor("shard-1.0", watcher.namespace).hello.remote())
            killed.append(shard.pid)
            os.kill(shard.pid, signal.SIGKILL)
        # until items of the new shard can be sampled
        return bool(killed) and status.restarts["shard"] == 1 and seen["lost_shards"] == 1 and seen["shards"] == 2

    watcher = run(cluster, tmp_path, {"0.0": "kill", "3.0": "print much"}, act)
    status, seen = watcher.status, watcher.seen
    assert killed
    assert status.restarts["shard"] == 1
    assert status.restarts["actor"] >= 1 + 2  # the killed one, and those of the lost group
    assert status.restarts["learner"] == 0
    assert status.dropped["lost_items"] > 0
    assert seen["lost_items"] > 0
    assert seen["applied"] > 0
    assert seen["sampled"] // BATCH - 32 <= seen["updates"] <= seen["sampled"] // BATCH  # batches come in loads
    assert any(text.startswith("actor-0: ") and "starting it again" in text for text in watcher.texts)
    assert any("shard-1 was lost with" in text for text in watcher.texts)
    assert not ray.is_initialized()
    printed = {path.stem: path.read_text() for path in (tmp_path / "run" / "logs").iterdir()}
    assert printed["actor-0"].count("actor-0.1 begins\n") == 1
    for words in ("actor-0.0 begins\n", "last words of actor-0.0\n"):
        assert printed["actor-0"].count(words) <= 1  # none, if it was killed before the driver first heard of it
    assert printed["actor-3"].count("line 9999 ") == 1  # the newest end of too much
    assert len(printed["actor-3"]) < MOST_BYTES + 1000
    assert 800_000 < status.dropped["log_bytes"] < 1_000_000


@pytest.mark.cluster
def test_an_actor_that_stands_still_is_killed_and_tells_its_stacks(cluster: str, tmp_path: Path) -> None:
    """It steps no environment of which a limit would be known."""
    watcher = run(
        cluster,
        tmp_path,
        {"1.0": "stand still"},
        lambda watcher, status: status.restarts["actor"] >= 1,
        stall_timeout=10.0,
    )
    (told, *_) = [text for text in watcher.texts if "actor-1: it stood still for 10 s (--stall-timeout)" in text]
    assert "plain_roles.py" in told
    assert " in step" in told


@pytest.mark.cluster
def test_what_another_life_would_repeat_ends_the_run(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="actor-2: the loss is nan"):
        run(cluster, tmp_path, {"2.0": "not finite"})


def test_what_the_cluster_does_not_have_is_said_within_seconds(one_node: str) -> None:
    config = Config(actor=ActorConfig(actors=2))
    placement = Ray(address=one_node, learner_gpus=3.0, replay_shards=1, wait_seconds=1.0)
    with Interrupts() as interrupts, closing(Driver(config, placement, interrupts)) as driver:
        began = time.monotonic()
        with pytest.raises(ConfigError, match=r"wants 4 CPU, 3 GPU in 2 bundles .* with 2 CPU, 0 GPU.*--learner-gpus"):
            driver.probe()
        assert time.monotonic() - began < 60.0  # and not for ever


def test_more_shards_than_actors_are_refused(one_node: str) -> None:
    config = Config(actor=ActorConfig(actors=2))
    with Interrupts() as interrupts, pytest.raises(ConfigError, match="--replay-shards 3 want an actor each"):
        Driver(config, Ray(one_node, replay_shards=3), interrupts)


def test_other_versions_on_a_node_are_refused_by_name() -> None:
    same = Hello("node7", "id", 1, {name: version for name, version in preflight.versions().items() if version})
    preflight.compare(same)
    with pytest.raises(ConfigError, match=r"node node7 has torch 1\.0, and this process has torch \d.*same versions"):
        preflight.compare(replace(same, versions={**same.versions, "torch": "1.0"}))
    without = {name: version for name, version in same.versions.items() if name != "torch"}
    with pytest.raises(ConfigError, match="torch not installed"):
        preflight.compare(replace(same, versions=without))


@pytest.mark.parametrize("address", ["nonsense", "ray://127.0.0.1:10001", ":6379", "host:port"])
def test_what_is_no_address_of_a_cluster_is_refused(address: str) -> None:
    with Interrupts() as interrupts, pytest.raises(ConfigError, match="say auto, local, or HOST:PORT"):
        Driver(Config(), Ray(address), interrupts)


def test_nobody_at_an_address_is_said_with_what_to_do() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with Interrupts() as interrupts, pytest.raises(LinkError, match=f"{address}.*ray start --head"):
        Driver(Config(), Ray(address), interrupts)


def test_somebody_else_at_an_address_is_said_within_seconds() -> None:
    """Ray would ask for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        said = threading.Thread(target=lambda: other.accept()[0].sendall(b"SSH-2.0-OpenSSH_9.6\r\n"))
        said.start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with Interrupts() as interrupts, pytest.raises(LinkError, match=f"{address}: .* is not its head"):
            Driver(Config(), Ray(address), interrupts)
        said.join(60.0)


@pytest.mark.cluster
def test_a_topology_that_cannot_be_spread_is_refused_before_there_is_a_folder(cluster: str, tmp_path: Path) -> None:
    config = with_agent(with_topology(override(Config(), {"out": str(tmp_path), "name": "run"}), "a3c"), "a2c")
    with pytest.raises(ConfigError, match="topology a3c runs with --ray only as --no-hogwild"):
        launch(override(config, {"env": "CartPole-v1", "actors": 1}), placement=Ray(cluster, learner_cpus=0.5))
    assert not (tmp_path / "run").exists()
