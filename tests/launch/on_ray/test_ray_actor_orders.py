"""``apexrl scale RUN`` of a run on a cluster: actors come and go as ordered. All but one are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import killing_runs
import pytest
import short_runs
from fake_cluster import Process, Watcher, World, make_up, run
from ray.exceptions import ActorUnavailableError

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch.ray import elastic_groups, ray_slots
from apexrl.launch.ray.ray_actors import GroupMemory, RoleProcess
from apexrl.run import actor_order
from apexrl.run.status import RunStatus
from apexrl.topologies.program import Program


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(elastic_groups, "_LOOK_SECONDS", 0.05)
    return make_up(monkeypatch)


def acting(watcher: Watcher) -> list[int]:
    return [one.index for one in watcher.status.workers if one.role == "actor" and one.state == "acting"]


class Orders:
    """Orders numbers of actors in turn, each once those that it expects act, and then stops the run."""

    def __init__(self, folder: Path, *steps: tuple[int, list[int]], then: Callable[[], bool] = lambda: True) -> None:
        self._folder, self._left, self._then = folder, list(steps), then
        self._expected: list[int] | None = None

    def __call__(self, watcher: Watcher) -> bool:
        if self._expected is not None and acting(watcher) != self._expected:
            return False
        if self._left:
            order, self._expected = self._left.pop(0)
            actor_order.write(self._folder, order)
            return False
        return self._then()


def test_actors_of_every_group_rest_and_are_called_again(world: World, tmp_path: Path) -> None:
    """Two groups, with actors 0 and 2, and 1 and 3."""
    orders = Orders(tmp_path / "run", (4, [0, 2, 1, 3]), (2, [0, 1]), (3, [0, 2, 1]), (1, [0]))
    watcher = run(tmp_path, orders)
    assert "2 actors from now on, as apexrl scale asks; 4 before" in watcher.texts
    assert [len(world.of(RoleProcess, place)) for place in (1, 2)] == [3, 2]
    assert [len(world.of(GroupMemory, place)) for place in (1, 2)] == [1, 1]  # shards stay
    assert not any("cleanly" in text for text in watcher.texts)
    assert set(watcher.status.restarts.values()) == {0}


def test_a_group_that_came_later_gives_its_resources_back_and_asks_for_them_again(world: World, tmp_path: Path) -> None:
    """Groups with actors 4 and 6, and 5 and 7, beside the first four."""
    world.places.update({3, 4})
    given_back: list[int] = []

    def give_back(number: int) -> None:
        given_back.append(number)
        del world.wanted[number]

    world.give_back = give_back  # type: ignore[method-assign]
    everybody = [0, 2, 1, 3, 4, 6, 5, 7]
    orders = Orders(tmp_path / "run", (8, everybody), (5, [0, 2, 1, 3, 4]), (8, everybody))
    watcher = run(tmp_path, orders, most=8, shards=4)
    assert given_back == [4]
    assert set(world.wanted) == {3, 4}
    assert "shard-3 ends with 7 items: its actors rest" in watcher.texts
    assert [len(world.of(GroupMemory, place)) for place in (1, 2, 3, 4)] == [1, 1, 1, 2]
    assert world.of(GroupMemory, 4)[0].killed
    assert set(watcher.status.restarts.values()) == {0}


def test_actors_that_rest_stand_in_for_a_group_that_is_lost(world: World, tmp_path: Path) -> None:
    """Three of four rest when the shard of the one that acts fails for good: the run goes on with another."""

    def unwell(process: Process, before: int) -> None:
        if process.place == 1 and process.kind is GroupMemory and before:
            process.fails = {"look": ActorUnavailableError("its memory is bad", b"x" * 16)}

    lost: list[int] = []

    def lose_it() -> bool:
        world.of(GroupMemory, 1)[0].fails = {"look": ActorUnavailableError("its memory is bad", b"x" * 16)}
        lost.append(1)
        return False

    def goes_on(watcher: Watcher) -> bool:
        if not lost:
            return orders(watcher)
        return any("goes on without shard-0" in text for text in watcher.texts) and acting(watcher) == [1]

    world.trouble = unwell
    orders = Orders(tmp_path / "run", (4, [0, 2, 1, 3]), (1, [0]), then=lose_it)
    run(tmp_path, goes_on, least=1)


def test_a_group_without_room_is_not_asked_for_while_its_actors_rest(world: World, tmp_path: Path) -> None:
    orders = Orders(tmp_path / "run", (6, [0, 2, 1, 3]), then=lambda: world.left == {4})
    run(tmp_path, orders, most=8, shards=4)
    assert not world.of(GroupMemory, 3)


def test_a_group_whose_actors_nobody_orders_does_not_rest() -> None:
    assert not ray_slots.ActorGroup(1, Program(Config()), 0, optional=True).resting


def test_fewer_than_the_least_are_refused(world: World, tmp_path: Path) -> None:
    told = "actors.json asks for 3 actors, and this run may have from 4 to 8: it goes on with 8"
    orders = Orders(tmp_path / "run", (3, [0, 2, 1, 3]))
    run(tmp_path, lambda watcher: orders(watcher) and told in watcher.texts, most=8, shards=4)


def test_an_actor_that_does_not_leave_is_killed(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_slots, "_GRACE_SECONDS", 0.3)

    def trouble(process: Process, before: int) -> None:
        process.deaf = process.kind is RoleProcess and process.place == 2 and before == 1

    world.trouble = trouble
    watcher = run(tmp_path, Orders(tmp_path / "run", (4, [0, 2, 1, 3]), (3, [0, 2, 1])))
    assert any(text.startswith("actor-3 did not leave cleanly") for text in watcher.texts)
    assert world.of(RoleProcess, 2)[1].killed
    assert watcher.status.restarts["actor"] == 0


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_actors_of_a_real_run_end_and_begin_as_ordered(cluster: str, tmp_path: Path) -> None:
    """Two of each group, then one, then two again; the learner goes on."""
    orders, expected = [2, 4], [4]

    def act(watcher: short_runs.Watcher, status: RunStatus) -> bool:
        there = [worker for worker in status.workers if worker.role == "actor" and worker.state != "starting"]
        if len(there) != expected[-1] or status.updates < 20 * len(expected):
            return False
        if orders:
            expected.append(orders.pop(0))
            actor_order.write(tmp_path / "run", expected[-1])
            return False
        return True

    replayed = {"capacity": 4000, "min_size": 200, "updates_per_step": 0.25}
    base = with_agent(override(Config(), {"out": str(tmp_path), "name": "run"}), "dqn")
    config = override(base, {**killing_runs.SMALL, **replayed})
    summary, watcher = killing_runs.run(cluster, config, act, replay_shards=2)
    assert set(summary["restarts"].values()) == {0}
    assert summary["actors"] == 4
    assert not watcher.said("cleanly")
