"""Groups that come when there is room and go with their nodes: with processes that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_cluster import Process, Watcher, World, make_up, run
from ray.exceptions import ActorUnavailableError, RayActorError

from apexrl.config import ActorConfig, Config
from apexrl.config.placement import Ray
from apexrl.errors import WorkerError
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.ray import driver, elastic_groups, group_control
from apexrl.launch.ray.driver import Driver
from apexrl.launch.ray.ray_actors import GroupMemory, Hello, RoleProcess


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(elastic_groups, "_LOOK_SECONDS", 0.05)
    return make_up(monkeypatch)


def test_groups_beyond_the_first_begin_when_there_is_room(world: World, tmp_path: Path) -> None:
    """Two groups with four actors at first; two more with two each, of which the cluster has room for the second."""
    begun: list[int] = []

    def until(watcher: Watcher) -> bool:
        if not begun and watcher.status.env_steps > 20:
            begun.append(watcher.status.env_steps)
            assert not world.of(GroupMemory, 3)
            assert not world.of(GroupMemory, 4)
            assert len(watcher.status.workers) == 1 + 4  # who has no place is no worker
            world.places.add(4)
        return len(world.of(RoleProcess, 4)) == 2 and all(one.asked > 2 for one in world.of(RoleProcess, 4))

    watcher = run(tmp_path, until, most=8, shards=4)
    assert set(world.wanted) == {3, 4}
    assert len(world.reserved) == 3
    assert begun
    assert len(watcher.status.workers) == 1 + 6
    assert not world.of(GroupMemory, 3)
    assert any("6 actors have resources now, of at most 8" in text for text in watcher.texts)


def test_fewer_actors_than_the_least_are_said_once_and_so_are_enough_again(world: World, tmp_path: Path) -> None:
    """The first generation of a base group dies; its second comes up when the third group has come."""
    world.places.add(3)

    def trouble(process: Process, before: int) -> None:
        if process.place == 2 and process.kind is GroupMemory:
            process.fails = {} if before else {"look": ActorUnavailableError("its node died", b"x" * 16)}
            process.never = {"hello"} if before == 1 else set()
        if process.place == 3 and process.kind is GroupMemory:
            process.never = {"hello"}

    def until(watcher: Watcher) -> bool:
        if any("fewer than" in text for text in watcher.texts):
            for process in world.of(GroupMemory, 3):
                process.greet()
        return any("again" in text and "actors have resources" in text for text in watcher.texts)

    world.trouble = trouble
    watcher = run(tmp_path, until, most=6, shards=3)
    texts = [text for text in watcher.texts if "actors have resources" in text]
    assert texts[:2] == [
        "2 actors have resources, fewer than the 4 of --actors 4:6; more begin when the cluster has room",
        "4 actors have resources again, of 4:6",
    ]


def test_a_group_that_is_not_needed_and_dies_too_often_is_done_without(world: World, tmp_path: Path) -> None:
    world.places.add(3)

    def trouble(process: Process, before: int) -> None:
        if process.place == 3 and process.kind is GroupMemory:
            process.fails = {"look": ActorUnavailableError("its node died", b"x" * 16)}

    def until(watcher: Watcher) -> bool:
        return (
            any("the run goes on without shard-2 and its actors: shard-2 was lost" in text for text in watcher.texts)
            and watcher.status.env_steps > 50
        )

    world.trouble = trouble
    watcher = run(tmp_path, until, most=6, shards=3)
    assert any("shard-2 was lost" in text and "begins again when there is room" in text for text in watcher.texts)
    generations = len(world.of(GroupMemory, 3))
    assert generations > 1
    assert world.left == {3}
    assert watcher.status.restarts["shard"] == generations - 1


@pytest.mark.parametrize("fatal", [False, True])
@pytest.mark.parametrize("well", [0, 1])
def test_a_group_that_is_not_needed_and_whose_actors_fail_always_is_done_without(
    world: World, tmp_path: Path, fatal: bool, well: int
) -> None:
    """Of its two actors the first ``well`` work, and end with the group."""
    world.places.add(3)

    def trouble(process: Process, before: int) -> None:
        if process.place == 3 and process.kind is RoleProcess and before >= well:
            process.fail(fatal)

    def until(watcher: Watcher) -> bool:
        return 3 in world.left and watcher.status.env_steps > 50

    world.trouble = trouble
    watcher = run(tmp_path, until, most=6, shards=3)
    (told,) = [text for text in watcher.texts if "the run goes on without shard-2 and its actors: actor-" in text]
    assert "the disk is full" in told
    assert ("and 5 restarts are allowed" in told) != fatal
    assert world.left == {3}
    assert len(world.of(GroupMemory, 3)) == 1
    assert all(process.killed for process in (*world.of(GroupMemory, 3), *world.of(RoleProcess, 3)))
    assert world.of(GroupMemory, 0)[0].met[3] is None  # weights go there no more
    states = [worker.state for worker in watcher.status.workers if worker.role == "actor"]
    assert states == ["stopped"] * 4 + ["failed"] * 2
    assert all(len(world.of(RoleProcess, place)) == 2 for place in (1, 2))


def test_a_needed_group_with_an_actor_that_fails_always_ends_the_run(world: World, tmp_path: Path) -> None:
    def trouble(process: Process, before: int) -> None:
        if process.place == 1 and process.kind is RoleProcess and before:
            process.fail()

    world.trouble = trouble
    with pytest.raises(WorkerError, match="actor-2 failed 2 times, and 5 restarts are allowed"):
        run(tmp_path, most=6, shards=3)
    assert world.closed


def test_an_actor_that_fails_too_often_is_done_without_and_its_group_stays(world: World, tmp_path: Path) -> None:
    def trouble(process: Process, before: int) -> None:
        if process.place == 1 and process.kind is RoleProcess and before:
            process.fail()

    def until(watcher: Watcher) -> bool:
        return any("goes on without" in text for text in watcher.texts) and watcher.status.env_steps > 50

    world.trouble = trouble
    watcher = run(tmp_path, until, least=3)
    (told,) = [text for text in watcher.texts if "the run goes on without actor-2: it failed 2 times" in text]
    assert "the disk is full" in told
    assert len(world.of(GroupMemory, 1)) == 1
    states = {worker.name: worker.state for worker in watcher.status.workers}
    assert states.pop("actor-2") == "failed"
    assert set(states.values()) == {"stopped"}


def test_a_group_that_is_lost_too_often_is_done_without_and_tried_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_control, "REFILL_SECONDS", 1.0)

    def trouble(process: Process, before: int) -> None:
        if process.place == 2 and process.kind is GroupMemory and before <= 5:
            process.fails = {"look": ActorUnavailableError("its memory is bad", b"x" * 16)}

    dropped: list[int] = []

    def until(watcher: Watcher) -> bool:
        if any("goes on without shard-1 and its actors" in text for text in watcher.texts) and not dropped:
            states = [worker.state for worker in watcher.status.workers if worker.role == "actor"]
            if (len(states), states.count("failed")) == (4, 2):  # in the next status, at the latest
                dropped.append(len(world.of(GroupMemory, 2)))
        return any(one.asked > 2 for one in world.of(RoleProcess, 2))

    world.trouble = trouble
    watcher = run(tmp_path, until, least=2)
    assert dropped == [6]  # five restarts are allowed
    assert len(world.of(GroupMemory, 2)) == 7
    assert "shard-1 and its actors are tried again" in watcher.texts
    assert len(world.of(GroupMemory, 1)) == len(world.of(GroupMemory, 0)) == 1


def test_a_group_is_needed_that_leaves_too_few_actors(world: World, tmp_path: Path) -> None:
    def trouble(process: Process, before: int) -> None:
        if process.place == 2 and process.kind is GroupMemory:
            process.fails = {"look": ActorUnavailableError("its memory is bad", b"x" * 16)}

    world.trouble = trouble
    with pytest.raises(WorkerError, match=r"shard-1 was lost .* failed 6 times, and 5 restarts are allowed"):
        run(tmp_path, least=3)


def test_a_lost_node_is_no_failure_of_who_worked_there(world: World, tmp_path: Path) -> None:
    def trouble(process: Process, before: int) -> None:
        if process.place == 1 and process.kind is GroupMemory and before < 4:
            gone = "The actor died because its node has died. Node Id: 1"
            process.fails = {"look": RayActorError(error_msg=gone)}

    world.trouble = trouble
    watcher = run(
        tmp_path, lambda watcher: len(world.of(GroupMemory, 1)) == 5 and watcher.status.env_steps > 10, restarts=1
    )
    assert watcher.status.restarts["shard"] == 4


def test_actors_that_fail_always_end_the_run_whoever_may_come_later(world: World, tmp_path: Path) -> None:
    """Those who never had a place are no reason to go on."""

    def trouble(process: Process, before: int) -> None:
        if process.kind is RoleProcess and process.place:
            process.fail()

    world.trouble = trouble
    with pytest.raises(WorkerError, match="all 4 actors fail always"):
        run(tmp_path, most=8, shards=4, restarts=50)


def test_a_node_with_other_versions_that_comes_later_is_left_alone(world: World, tmp_path: Path) -> None:
    world.places.add(3)

    def trouble(process: Process, before: int) -> None:
        if process.place == 3 and process.kind is GroupMemory:
            process.never = {"hello"}
            process.greeting.value = (Hello("node7", "id", 1, {"apexrl": "0.0"}),)

    def until(watcher: Watcher) -> bool:
        return bool(world.left) and watcher.status.env_steps > 50

    world.trouble = trouble
    watcher = run(tmp_path, until, most=6, shards=3)
    assert world.left == {3}
    assert world.of(GroupMemory, 3)[0].killed
    assert len(world.of(GroupMemory, 3)) == 1
    assert any("goes on without shard-2 and its actors: node node7 has apexrl 0.0" in text for text in watcher.texts)


def test_places_are_given_back_even_where_nobody_can_be_killed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trouble(process: Process, before: int) -> None:
        if process.kind is RoleProcess and not process.place:
            monkeypatch.setattr(driver, "kill", unreachable)

    def unreachable(handle: Any) -> None:
        raise RuntimeError("Ray is gone")

    world.trouble = trouble
    with pytest.raises(RuntimeError, match="Ray is gone"):
        run(tmp_path, lambda watcher: watcher.status.env_steps > 0)
    assert world.closed


def test_a_ray_of_its_own_begins_with_room_for_the_least(world: World, tmp_path: Path) -> None:
    placement = Ray("local")
    for slots in (2, 64):
        config = Config(name="run", out=str(tmp_path), actor=ActorConfig(actors=2, actor_slots=slots))
        with Interrupts() as interrupts:
            Driver(config, placement, interrupts).close()
        assert world.local_cpus == placement.learner_cpus + placement.shard_cpus + 2 * placement.actor_cpus
