"""Shards on the sampler's own node are sampled there, and are lost with the process that holds their memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import ActorUnavailableError, RayActorError
from ray_environment import QUIET
from short_runs import Watcher, run

from apexrl.errors import ClosedError, OwnershipError
from apexrl.launch.ray import local_shard, shard_clients
from apexrl.launch.ray.local_shard import Lent, LocalShard
from apexrl.launch.ray.ray_actors import GroupMemory
from apexrl.launch.ray.shard_clients import ShardAnswer, ShardClient
from apexrl.replay import Field, Replay
from apexrl.replay.sharded.shard import DrawResult, Shard, ShardStatus
from apexrl.run.status import RunStatus

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]

KEPT: list[LocalShard] = []  # of a process


class Process:
    """A group's, which lends its replay to whoever asks."""

    def __init__(self, replay: Replay) -> None:
        self.state = replay.handle
        self.dead: Exception | None = None
        self.called: list[str] = []
        self.draw = SimpleNamespace(remote=self._draw)
        self.ping = SimpleNamespace(remote=self._ping)

    def _draw(self, count: int, until: int | None, node: str) -> Any:
        self.called.append(f"draw from {node}")
        if not node:
            return DrawResult({}, np.zeros(0, np.uint64), np.zeros(0), ShardStatus(50, 50.0, 50, "far", 0, 1))
        return Lent(self.state, "its generation", count, until)

    def _ping(self) -> Any:
        self.called.append("ping")
        return self.dead or True


@pytest.fixture
def replay() -> Any:
    with Replay(100, {"number": Field((), "int64")}, writers=1, eps=0.0) as made:
        made.writer().extend({"number": np.arange(50)}, priorities=np.ones(50))
        yield made


@pytest.fixture
def end(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> ShardClient:
    """Of a shard in one process after another, as ``Process``."""

    def get(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    made_up = SimpleNamespace(get=get, wait=lambda references, **_: (references, []))
    monkeypatch.setattr(shard_clients, "ray", made_up)
    monkeypatch.setattr(local_shard, "ray", made_up)
    monkeypatch.setattr(shard_clients, "node_id", lambda: "here")
    monkeypatch.setattr(local_shard, "_PULSE_SECONDS", 0.0)
    made = ShardClient("shard-0", "mine", SimpleNamespace(generations=lambda name: []))  # type: ignore[arg-type]
    made._handle = Process(replay)
    return made


def test_a_lent_shard_is_sampled_here_and_its_process_only_asked_whether_it_lives(end: ShardClient) -> None:
    process = end._handle
    early = end.draw(8, None), end.draw(0, None)  # asked before it was known
    assert end._near is None
    drawn = early[0].take()
    assert len(drawn.keys) == 8
    assert end._near is not None
    standing = early[1].take().status
    assert (standing.size, standing.sampled, standing.generation) == (50, 8, drawn.status.generation)
    assert process.called == ["draw from here"] * 2
    for _ in range(3):
        assert len(end.draw(8, None).take().keys) == 8
    assert end.update(drawn.status.generation, drawn.keys, np.full(8, 2.0)).take().updated == (8, 0)
    assert set(process.called[2:]) == {"ping"}


def test_it_is_lost_with_its_process(end: ShardClient) -> None:
    process = end._handle
    end.draw(0, None).take()
    ahead = end.draw(8, None)
    process.dead = RayActorError()
    while end._near is not None:
        answer = end.draw(8, None)
    for lost in (ahead, answer, end.draw(8, None), end.update("run", np.zeros(1, np.uint64), np.ones(1))):
        with pytest.raises(ClosedError):
            lost.take()


def test_what_another_still_samples_is_not_there_yet(end: ShardClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def owned(*_: Any) -> None:
        raise OwnershipError("process 7 owns this replay")

    with monkeypatch.context() as patched:
        patched.setattr(shard_clients, "LocalShard", owned)
        with pytest.raises(ClosedError, match="process 7 owns"):
            end.draw(8, None).take()
    assert end._near is None
    assert len(end.draw(8, None).take().keys) == 8


def test_memory_out_of_reach_is_called(end: ShardClient, replay: Replay) -> None:
    """As between nodes: a container may have processes of its own, which others cannot see."""
    (pid, number, token, name), creator = end._handle.state
    assert pid == os.getpid()
    end._handle.state = ((2**22 + 1, number, bytes(len(token)), name), creator)
    first = end.draw(8, None)
    with pytest.raises(ClosedError):
        first.take()
    assert end.draw(8, None).take().status.generation == "far"
    assert end._near is None
    assert end._handle.called == ["draw from here", "draw from "]


def test_what_a_former_process_lends_is_not_taken(end: ShardClient, replay: Replay) -> None:
    process = end._handle
    late = end.draw(8, None)
    end._handle = Process(replay)
    with pytest.raises(ClosedError, match="lost"):
        late.take()
    assert end._near is None
    assert not replay.core.native.owned
    answer = ShardAnswer(end, process, RayActorError())
    with pytest.raises(ClosedError):
        answer.take()
    assert end._handle is not None


def test_a_group_lends_its_shard_and_takes_it_back_when_nobody_has_it(replay: Replay) -> None:
    memory: Any = GroupMemory.__new__(GroupMemory)
    memory._shard, memory._node, memory._lent = Shard(replay), "here", False
    generation = memory._shard.generation
    before = memory.draw(8, None, "elsewhere")
    lent = memory.draw(8, None, "here")
    assert (lent.generation, lent.rows) == (generation, 8)
    assert not replay.core.native.owned
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as sampler:
        assert sampler.submit(sample, lent).result() == generation
        with pytest.raises(ClosedError, match="owns this replay"):
            memory.draw(8, None, "elsewhere")
        meanwhile = memory.update(generation, before.keys, np.ones(8))
        assert meanwhile.updated == (0, 8)  # it is the sampler's to write them
        assert (meanwhile.status.generation, meanwhile.status.size) == (generation, 50)
    after = memory.draw(8, None, "elsewhere")
    assert (after.status.generation, after.status.sampled) == (generation, 8 + 8 + 8)
    assert memory.update(generation, before.keys, np.ones(8)).updated == (8, 0)


def sample(lent: Lent) -> str:
    """In a process of its own, which owns the replay from then on."""
    KEPT.append(LocalShard(None, lent))
    standing: ShardStatus = KEPT[0].draw(lent.rows, lent.until).take().status
    return standing.generation


def test_a_broken_connection_is_no_death(end: ShardClient) -> None:
    process = end._handle
    first = end.draw(8, None).take()
    process.dead = ActorUnavailableError("the connection broke", b"x" * 16)
    for _ in range(4):
        assert end.draw(8, None).take().status.generation == first.status.generation
    assert "ping" in process.called


@pytest.mark.cluster
def test_a_shard_beside_the_learner_outlives_the_learner_and_is_lost_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: Ray makes no actors in one that had a cluster, then its own Ray, then the cluster."""
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # where Ray's processes find the roles
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        lost, seen, restarts = process.submit(kill_learner_and_shard, tmp_path).result()
    assert lost[0] == 0
    assert lost[1] > 100
    assert seen["lost_items"] > 100
    assert restarts["learner"] == restarts["shard"] == 1


def kill_learner_and_shard(out: Path) -> tuple[list[int], dict[str, Any], dict[str, int]]:
    """Lost items after the death of each; what the learner saw at last; restarts."""
    killed: dict[str, int] = {}
    lost: list[int] = []

    def act(watcher: Watcher, status: RunStatus) -> bool:
        seen = watcher.seen
        if seen.get("near") != 2 or seen["size"] < 1000:
            return False
        if "learner" not in killed:
            killed["learner"] = next(worker.pid or 0 for worker in status.workers if worker.role == "learner")
            os.kill(killed["learner"], signal.SIGKILL)
        elif "shard" not in killed:
            if seen["generation"] == 1:  # it has found everything where it was
                lost.append(status.dropped["lost_items"])
                process = ray.get_actor("shard-1.0", watcher.namespace)
                killed["shard"] = ray.get(process.hello.remote()).pid
                os.kill(killed["shard"], signal.SIGKILL)
        elif status.restarts["shard"] == 1 and seen["lost_shards"] == 1:
            lost.append(status.dropped["lost_items"])
            return True
        return False

    watcher = run("local", out, {}, act, actors=(2, 2))
    return lost, watcher.seen, dict(watcher.status.restarts)
