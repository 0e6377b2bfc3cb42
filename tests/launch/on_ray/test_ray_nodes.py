"""Whole nodes are lost: what was there is counted, the run goes on, and begins anew where there is room."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from plain_roles import Scribe
from short_runs import Watcher, run

from apexrl.config import ActorConfig, Config
from apexrl.config.placement import Ray
from apexrl.errors import ConfigError
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.ray.driver import Driver
from apexrl.run.ownership import Generations
from apexrl.run.status import RunStatus

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def test_the_node_of_a_shard_is_lost_and_its_group_begins_on_another(nodes: Any, tmp_path: Path) -> None:
    """No node has room for the group beside what it has. The learner samples the other shard until there is one."""
    lost: list[str] = []
    after: list[int] = []
    where: list[str] = []

    def act(watcher: Watcher, status: RunStatus) -> bool:
        seen = watcher.seen
        if not lost:
            if set(seen.get("slots", {})) == {"0", "1", "2", "3"}:
                lost.append(watcher.where("shard-1"))
                nodes.lose(lost[0])
            return False
        if not after:
            if status.dropped["lost_items"] > 0 and seen["lost_shards"] == 1:
                after.append(status.updates)
            return False
        if len(after) == 1:
            if status.updates > after[0] + 20:  # with one shard
                after.append(status.updates)
                nodes.add()
            return False
        if not where and seen["shards"] == 2 and status.restarts["shard"] >= 1:
            where.append(watcher.where("shard-1"))
        return bool(where)

    watcher = run(nodes.address, tmp_path, {}, act)
    assert where == [nodes.newest]
    summary = watcher.summary
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"]["shard"] == 1
    assert summary["restarts"]["actor"] >= 2  # both of the lost group
    assert summary["restarts"]["learner"] == 0
    assert summary["dropped"]["lost_items"] > 0
    assert watcher.said("shard-1 was lost with")


def test_the_learners_node_is_lost_and_home_begins_anew_from_the_last_checkpoint(nodes: Any, tmp_path: Path) -> None:
    lost: list[int] = []

    def act(watcher: Watcher, status: RunStatus) -> bool:
        if not lost:
            if status.updates > 60 and list(
                (tmp_path / "run" / "checkpoints").glob("generation-*-update-*.safetensors")
            ):
                lost.append(status.updates)
                nodes.lose(watcher.seen["node"])
                watcher.seen = {}
                nodes.add()  # home has room beside no group
            return False
        return status.updates > lost[0] + 20 and watcher.seen.get("generation", 0) > 0

    watcher = run(nodes.address, tmp_path, {}, act, actor_cpus=0.5)  # no group is on home's node, to be lost with it
    summary = watcher.summary
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"]["learner"] >= 1
    assert summary["restarts"]["shard"] == 0
    assert summary["dropped"]["lost_items"] == 0
    assert watcher.said("the learner's node or memory was lost")
    assert watcher.said("learner-0 restored generation-")
    # The learner may have gone on for long after what the driver last heard. Versions never go back.
    assert 50 <= watcher.seen["restored"] < watcher.seen["first_version"]
    assert lost[0] < watcher.seen["first_version"]


def test_a_learner_that_is_cut_off_stops_writing_before_the_next_one_begins(nodes: Any, tmp_path: Path) -> None:
    """For the head its node is dead, but its process lives on, and sees the run folder."""
    cut: list[str] = []
    beside: list[bool] = []

    def notes() -> list[list[str]]:
        found = sorted((tmp_path / "run").glob("notes-*.txt"), key=lambda path: int(path.stem[6:]))
        return [path.read_text().split("\n")[:-1] for path in found]

    def act(watcher: Watcher, status: RunStatus) -> bool:
        generations = notes()
        if not cut:
            if watcher.seen and generations and any(line.startswith("wrote") for line in generations[0]):
                cut.append(watcher.seen["node"])
                nodes.cut_off(cut[0])
                nodes.add()
            return False
        if len(generations) > 1 and not beside:
            os.kill(int(generations[0][0].split()[1]), 0)  # it is there, beside the next one
            beside.append(True)
        return len(generations) > 1 and sum(line.startswith("wrote") for line in generations[1]) > 10

    try:
        watcher = run(nodes.address, tmp_path, {}, act, learner=Scribe)
        first, second = notes()
        assert watcher.summary["stopped_by"] == "callback"
        assert beside
        assert watcher.summary["restarts"]["learner"] >= 1  # Ray may try one on the lost node
        words = [line.split()[0] for line in first]
        last = max(index for index, word in enumerate(words) if word == "wrote")
        assert "FencedError" not in words[:last]
        assert words[last + 1] == "LinkError"  # its lease ran out before another generation was begun
        assert len({line.split()[1] for line in first + second}) == 2
        (newest,) = {path.name[:15] for path in (tmp_path / "run" / "checkpoints").glob("generation-*.safetensors")}
        assert newest == f"generation-{Generations(tmp_path / 'run').newest('learner-0'):04d}" > "generation-0001"
    finally:
        if cut:
            nodes.lose(cut[0])


def test_a_run_grows_with_the_cluster_and_goes_on_with_what_is_left(nodes: Any, tmp_path: Path) -> None:
    """Two actors at first; two more have room on the third node; the last two begin when a fourth comes, and leave with
    a node."""
    added: list[int] = []
    lost: list[int] = []

    def act(watcher: Watcher, status: RunStatus) -> bool:
        slots = set(watcher.seen.get("slots", {}))
        if not added:
            if len(slots) == 4:
                assert {"0", "1"} < slots
                assert len(status.workers) == 1 + 4
                added.append(status.updates)
                nodes.add()
            return False
        if not lost:
            if len(slots) == 6:
                lost.append(status.updates)
                nodes.lose(watcher.where("shard-2"))
            return False
        return status.dropped["lost_items"] > 0 and status.updates > lost[0] + 20

    watcher = run(nodes.address, tmp_path, {}, act, actors=(2, 6), shards=3)
    assert watcher.summary["stopped_by"] == "callback"
    assert watcher.summary["restarts"] == {"learner": 0, "actor": 0, "shard": 0}
    assert watcher.said("6 actors have resources now, of at most 6")
    assert watcher.said("shard-2 was lost with")
    assert not watcher.said("fewer than the 2")


def test_a_node_whose_workers_have_another_version_is_refused_by_name(nodes: Any, tmp_path: Path) -> None:
    """Home and two groups have room on three nodes; the third group has it on the fourth alone."""
    forged = tmp_path / "apexrl-9.9.dist-info"
    forged.mkdir()
    (forged / "METADATA").write_text("Metadata-Version: 2.1\nName: apexrl\nVersion: 9.9\n")
    nodes.add(env_vars={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parent}"})
    config = Config(actor=ActorConfig(actors=3))
    placement = Ray(nodes.address, shard_cpus=0.5, replay_shards=3, wait_seconds=60.0)
    refused = pytest.raises(ConfigError, match=r"node \S+ has apexrl 9\.9, and this process has apexrl \d")
    try:
        with Interrupts() as interrupts, closing(Driver(config, placement, interrupts)) as driver, refused:
            driver.probe()
    finally:
        nodes.lose(nodes.newest)
