"""The driver's judgement of who does not come, or cannot be reached: with processes that are made up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_cluster import Coming, Process, Watcher, World, make_up, run
from plain_roles import Learner
from ray.exceptions import ActorDiedError, ActorUnavailableError, NodeDiedError, RayTaskError

from apexrl.errors import ClosedError, ConfigError, FencedError, LinkError, WorkerError
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.ray import driver, group_control, preflight, ray_actors, ray_slots, shard_clients
from apexrl.launch.ray.ray_actors import GroupMemory, Hello, News, RayAssignment, Report, RoleProcess
from apexrl.launch.ray.ray_slots import RaySlot
from apexrl.links.local.control_board import RUN
from apexrl.links.local.role_context import WorkerIdentity
from apexrl.run import env_changes, ownership
from apexrl.run.env_changes import EnvChange
from apexrl.run.ownership import Fence, Generations
from apexrl.topologies.program import Node


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return make_up(monkeypatch)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> World:
    return make_up(monkeypatch, patience=2.0)


@pytest.mark.parametrize("kind", [GroupMemory, RoleProcess])
def test_a_learner_without_a_place_ends_the_run(impatient: World, tmp_path: Path, kind: type) -> None:
    def trouble(process: Process, before: int) -> None:
        if process.place == 0 and process.kind is kind:
            process.never = {"hello", "poll"}

    impatient.trouble = trouble
    with pytest.raises(WorkerError, match=r"learner's node has not started its processes within 2 s: .* no room"):
        run(tmp_path)


def test_actors_without_any_place_end_the_run(impatient: World, tmp_path: Path) -> None:
    def trouble(process: Process, before: int) -> None:
        process.never = {"hello"} if process.place else set()

    impatient.trouble = trouble
    with pytest.raises(WorkerError, match="no group of actors has begun to work"):
        run(tmp_path)


def test_a_group_without_a_place_is_said_once_and_the_others_go_on(impatient: World, tmp_path: Path) -> None:
    def trouble(process: Process, before: int) -> None:
        process.never = {"hello"} if process.place == 2 else set()

    impatient.trouble = trouble
    late: list[int] = []

    def until(watcher: Watcher) -> bool:
        late.extend([watcher.status.env_steps] * any("shard-1" in text for text in watcher.texts))
        return bool(late) and watcher.status.env_steps > late[0] + 10

    watcher = run(tmp_path, until)
    assert sum("shard-1 has not begun to work within" in text for text in watcher.texts) == 1


def test_memory_that_does_not_answer_is_lost(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped, or is stuck, is up for Ray; who samples its shard waits for it."""
    monkeypatch.setattr(group_control, "_SILENT_SECONDS", 0.5)

    def trouble(process: Process, before: int) -> None:
        if process.place == 2 and process.kind is GroupMemory and not before:
            process.never = {"look"}

    world.trouble = trouble
    watcher = run(tmp_path, lambda watcher: len(world.of(GroupMemory, 2)) > 1 and watcher.status.restarts["shard"] == 1)
    assert any("shard-1 was lost with 0 items (it has not answered for 0.5 s)" in text for text in watcher.texts)
    assert world.of(GroupMemory, 2)[0].killed
    assert len(world.of(GroupMemory, 1)) == 1  # nobody else begins anew


def test_an_actor_that_answers_no_more_is_killed(world: World, tmp_path: Path) -> None:
    """Its environment may hold the interpreter's lock, and then nobody in its process can say for how long."""
    stuck: list[Process] = []

    def until(watcher: Watcher) -> bool:
        first = world.of(RoleProcess, 1)
        if first and first[0].asked > 1 and not stuck:
            stuck.append(first[0])
            stuck[0].never = {"poll"}
        return bool(stuck) and watcher.status.restarts["actor"] == 1

    watcher = run(tmp_path, until, env_timeout=0.5)
    assert stuck[0].killed
    assert any("it has not answered for 0.5 s (--env-timeout)" in text for text in watcher.texts)
    assert watcher.status.restarts["learner"] == 0
    assert watcher.status.dropped["hung_env_calls"] == 1


@pytest.mark.parametrize("answers", [True, False])
def test_a_role_that_stands_still_is_killed_and_says_where_it_was(world: World, tmp_path: Path, answers: bool) -> None:
    """Also one that steps no environment."""

    def until(watcher: Watcher) -> bool:
        first = world.of(RoleProcess, 0)
        if first and first[0].asked > 1:
            first[0].quiet = 0.6
            first[0].never = set() if answers else {"stacks", "poll"}
        return watcher.status.restarts["learner"] == 1

    watcher = run(tmp_path, until, stall_timeout=0.5)
    assert world.of(RoleProcess, 0)[0].killed
    (told,) = [text for text in watcher.texts if "learner-0: it" in text]
    assert ("it stood still for 0.5 s (--stall-timeout)" in told) == answers
    assert ("its stacks" in told) == answers
    assert ("it has not answered for 0.5 s (--stall-timeout)" in told) != answers
    assert watcher.status.restarts["actor"] == 0
    assert watcher.status.dropped["hung_env_calls"] == 0


def test_a_driver_that_slept_kills_nobody() -> None:
    """When it wakes, what everybody was asked is an hour old, and the answers are under way."""
    place = RaySlot(Node("actor", SimpleNamespace, 1, {}, env_timeout=30.0), 0)
    place.begin(0.0, "handle")
    place.hear(Report({}, pid=1, state="acting"), 1.0)
    place.polled, place.asked_at = "asked", 1.0
    assert not place.hangs(1.1, 300.0)
    assert not place.hangs(3601.0, 300.0)
    turns = 0
    while not place.hangs(3601.0 + turns / 10, 300.0):
        turns += 1
    assert 290 < turns <= 301  # from then on it counts


def test_a_group_that_takes_no_weights_begins_anew_and_home_goes_on(world: World, tmp_path: Path) -> None:
    def until(watcher: Watcher) -> bool:
        if not world.refused and len(world.of(GroupMemory, 2)) == 1 and watcher.status.env_steps > 10:
            world.refused[2] = "of another network"
        return len(world.of(GroupMemory, 2)) == 2 and watcher.status.restarts["shard"] == 1

    watcher = run(tmp_path, until)
    assert any("shard-1 was lost" in text and "it takes no weights: of another" in text for text in watcher.texts)
    assert len(world.of(GroupMemory, 0)) == len(world.of(GroupMemory, 1)) == 1


def test_a_group_that_never_takes_weights_is_done_without(world: World, tmp_path: Path) -> None:
    def until(watcher: Watcher) -> bool:
        newest = world.of(GroupMemory, 2)[-1:]
        if newest and not newest[0].killed and world.of(GroupMemory, 0)[0].met.get(2) is newest[0]:
            world.refused[2] = "of another network"
        return any("goes on without shard-1" in text for text in watcher.texts)

    watcher = run(tmp_path, until, least=1, restarts=100)
    assert len(world.of(GroupMemory, 2)) == 3  # generations in vain
    assert len(world.of(GroupMemory, 0)) == len(world.of(GroupMemory, 1)) == 1
    assert watcher.status.restarts["learner"] == 0


def test_the_driver_waits_for_all_with_one_call(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    sleep = driver.Driver._sleep

    def counted(self: driver.Driver) -> None:
        turns.append(1)
        sleep(self)

    monkeypatch.setattr(driver.Driver, "_sleep", counted)
    run(tmp_path, lambda watcher: watcher.status.env_steps > 30)
    assert 0 < world.waits <= len(turns)


@pytest.mark.parametrize("kind", [GroupMemory, RoleProcess])
def test_who_cannot_be_reached_is_killed_before_another_takes_its_place(
    world: World, tmp_path: Path, kind: type
) -> None:
    """Ray says unavailable of what may live on: a second learner would write beside it."""
    away = ActorUnavailableError("the connection broke", b"x" * 16)

    def trouble(process: Process, before: int) -> None:
        if process.place == 0 and process.kind is kind and not before:
            process.fails = {"look": away, "poll": away}
        elif process.place == 0 and before:
            assert world.of(process.kind, 0)[0].killed  # before this one

    world.trouble = trouble
    run(tmp_path, lambda watcher: len(world.of(RoleProcess, 0)) == 2 and world.of(RoleProcess, 0)[1].asked > 0)
    assert len(world.of(kind, 0)) == 2


@pytest.mark.parametrize("sure", [True, False])
def test_a_learner_that_may_live_on_is_followed_when_its_lease_is_over(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sure: bool
) -> None:
    """Ray calls dead whoever it cannot reach with its node; of a process that was killed the node itself says so."""
    monkeypatch.setattr(ray_slots, "LEASE_SECONDS", 5.0)
    heard: list[float] = []
    begun: list[float] = []
    error = ActorDiedError() if sure else NodeDiedError("its node is dead")

    def trouble(process: Process, before: int) -> None:
        if process.place == 0 and process.kind is RoleProcess and before:
            begun.append(time.monotonic())

    def until(watcher: Watcher) -> bool:
        first = world.of(RoleProcess, 0)
        if first and first[0].asked > 1 and not heard:
            heard.append(time.monotonic())
            first[0].fails = {"poll": error}
        return len(first) > 1 and first[1].asked > 0

    world.trouble = trouble
    watcher = run(tmp_path, until)
    assert world.of(RoleProcess, 0)[0].killed
    assert (begun[0] - heard[0] >= 4.0) != sure  # it was heard a poll before, at most
    assert watcher.status.restarts["learner"] == 1


def test_a_learner_that_does_not_answer_is_said_to_write_nothing(world: World, tmp_path: Path) -> None:
    def until(watcher: Watcher) -> bool:
        (first, *_) = world.of(RoleProcess, 0) or [None]
        if first is None or first.asked < 2:
            return False
        if not any("writes nothing into the run folder" in text for text in watcher.texts):
            first.never = {"poll"}
        elif first.never:
            first.never = set()
            for unanswered in first.unanswered:
                unanswered.value = (Report({"env_steps": first.asked}, pid=1, state="acting"),)
        return any(text == "learner-0 answers again, and may write into the run folder" for text in watcher.texts)

    watcher = run(tmp_path, until)
    assert sum("learner-0 has not answered for 0.5 s" in text for text in watcher.texts) == 1
    assert watcher.status.restarts["learner"] == 0


@pytest.fixture
def role_process() -> Iterator[Callable[[RayAssignment], RoleProcess]]:
    made: list[RoleProcess] = []

    def make(assignment: RayAssignment) -> RoleProcess:
        made.append(RoleProcess(assignment))
        return made[-1]

    yield make
    for process in made:
        process._ours.close()
        process._theirs.close()


def test_a_writer_may_write_for_as_long_as_the_driver_surely_heard_it(
    role_process: Callable[[RayAssignment], RoleProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is counted from its own last word that the driver has: a poll that was long under way is too old."""
    now = [1000.0]
    monkeypatch.setattr(ray_actors, "lease_clock", lambda: now[0])
    monkeypatch.setattr(ownership, "lease_clock", lambda: now[0])
    generations = Generations(tmp_path)
    generations.begin()
    process = role_process(RayAssignment(WorkerIdentity("learner-0", "learner", 0, 0, 1, tmp_path, 2), True, Learner))
    assert generations.grant("learner-0") == 2
    fence = Fence(
        tmp_path, "learner-0", process._assignment.worker.folder_generation, lambda: process._board.held_until
    )
    first = process.poll(News(RUN, {}))
    with pytest.raises(LinkError, match="has not answered"):
        fence.check()  # whether that report arrived, nobody knows
    now[0] += 3.0
    second = process.poll(News(RUN, {}, first.said_at))
    fence.check()
    now[0] += ray_actors.LEASE_SECONDS - 3.0
    fence.check()
    now[0] += 0.001
    assert fence.paused
    process.poll(News(RUN, {}, second.said_at))
    fence.check()
    now[0] += 60.0
    process.poll(News(RUN, {}, second.said_at))  # sent a minute ago
    with pytest.raises(LinkError, match="has not answered"):
        fence.check()
    generations.grant("learner-0")
    with pytest.raises(FencedError):
        fence.check()


def test_roles_that_write_nothing_need_no_lease(
    role_process: Callable[[RayAssignment], RoleProcess], tmp_path: Path
) -> None:
    process = role_process(RayAssignment(WorkerIdentity("actor-0", "actor", 0, 0, 1, tmp_path), False, Learner))
    process.poll(News(RUN, {}, 1.0))
    assert process._board.held_until == 0.0


def test_roles_hear_of_changed_settings_of_environments_once(
    role_process: Callable[[RayAssignment], RoleProcess], tmp_path: Path
) -> None:
    process = role_process(RayAssignment(WorkerIdentity("actor-0", "actor", 0, 0, 1, tmp_path), False, Learner))
    data = env_changes.encoded(EnvChange(1, {"level": 2}), "here")
    for _ in range(2):
        process.poll(News(RUN, {}, env_change=data))
    assert (process._board.env_changes, process._board.env_change()) == (1, data)


def test_who_asks_a_server_at_home_begins_anew_with_that(world: World, tmp_path: Path) -> None:
    """What they were given leads nowhere. Their groups stay, and none is to blame."""

    def trouble(process: Process, before: int) -> None:
        if process.place == 0 and process.kind is GroupMemory and not before:
            process.fails = {"look": ActorUnavailableError("the connection broke", b"x" * 16)}

    def until(watcher: Watcher) -> bool:
        second = [world.of(RoleProcess, place)[2:] for place in (1, 2)]
        return all(len(both) == 2 and all(one.asked for one in both) for both in second)

    world.trouble = trouble
    watcher = run(tmp_path, until, asks=True)
    assert all(one.killed for place in (1, 2) for one in world.of(RoleProcess, place)[:2])
    assert [len(world.of(GroupMemory, place)) for place in (0, 1, 2)] == [2, 1, 1]
    assert {"gateway": 1, "actor": 4, "group": 0}.items() <= watcher.status.restarts.items()
    assert not any(process.met for process in world.of(GroupMemory, 0))  # nobody wants weights


def test_a_life_that_never_began_is_no_second_loss(world: World, tmp_path: Path) -> None:
    """Ray tries the next generation on the lost node, too, until it has noticed that it is gone."""
    away = ActorUnavailableError("the connection broke", b"x" * 16)

    def trouble(process: Process, before: int) -> None:
        if process.place == 2 and process.kind is GroupMemory and before < 2:
            process.fails = {("look", "hello")[before]: away}

    world.trouble = trouble
    watcher = run(
        tmp_path, lambda watcher: watcher.status.restarts["shard"] == 1 and len(world.of(GroupMemory, 2)) == 3
    )
    assert watcher.status.restarts["shard"] == 1
    assert sum("shard-1 was lost with" in text for text in watcher.texts) == 1
    assert sum("shard-1 did not begin to work" in text for text in watcher.texts) == 1


def test_a_node_with_other_versions_that_comes_later_ends_the_run_in_good_order(world: World, tmp_path: Path) -> None:
    other = Hello("node7", "id", 1, {"apexrl": "0.0"})
    again: list[Process] = []

    def trouble(process: Process, before: int) -> None:
        if process.place == 1 and process.kind is GroupMemory:
            if not before:
                process.fails = {"look": ActorUnavailableError("gone", b"x" * 16)}
            else:
                process.never = {"hello"}
                again.append(process)
                answer = process.answer
                process.answer = lambda method, arguments: (  # type: ignore[method-assign]
                    Coming(other) if method == "hello" else answer(method, arguments)
                )

    world.trouble = trouble
    with pytest.raises(ConfigError, match=r"node node7 has apexrl 0\.0"):
        run(tmp_path)
    assert again
    (learner,) = world.of(RoleProcess, 0)
    assert learner.living.get().status == 0  # it was told to stop, and could write what it had


def test_a_node_without_the_package_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RayTaskError("hello", "Traceback …\nModuleNotFoundError: No module named 'apexrl'", ImportError())
    world = World()
    monkeypatch.setattr(world, "get", lambda references: [one.get() for one in references])
    monkeypatch.setattr(preflight, "ray", world)
    said = pytest.raises(ConfigError, match=r"No module named 'apexrl'.*install the same packages on every node")
    with Interrupts() as interrupts, said:
        preflight._await([Coming(error)], 1.0, "late", interrupts)


def test_a_shard_is_found_in_whatever_life_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"shard-1.0": "dying", "shard-1.17": "seventeenth", "shard-1.9": "ninth", "shard-11.30": "another's"}
    known = [{"name": name, "namespace": "mine"} for name in there]
    known += [{"name": "shard-1.40", "namespace": "yours"}, {"name": "else", "namespace": "mine"}]
    monkeypatch.setattr(shard_clients, "list_named_actors", lambda all_namespaces: known)

    def get_actor(name: str, namespace: str) -> str:
        assert namespace == "mine"
        if name == "shard-1.17" and there[name] == "gone":
            raise ValueError(name)
        return there[name]

    monkeypatch.setattr(shard_clients.ray, "get_actor", get_actor)
    end = shard_clients.ShardClient("shard-1", "mine")
    assert end._find()
    assert end._handle == "seventeenth"
    there["shard-1.17"] = "gone"
    end._searched = -1e9
    assert end._find()
    assert end._handle == "ninth"


def test_a_late_error_of_one_life_does_not_forget_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    end = shard_clients.ShardClient("shard-0", "mine")
    monkeypatch.setattr(shard_clients.ray, "get", Coming.get)
    lost = ActorUnavailableError("it went", b"x" * 16)
    old = shard_clients.ShardAnswer(end, "generation a", Coming(lost))
    end._handle = "generation b"
    with pytest.raises(ClosedError, match="this shard was lost"):
        old.take()
    assert end._handle == "generation b"
    with pytest.raises(ClosedError):
        shard_clients.ShardAnswer(end, "generation b", Coming(lost)).take()
    assert end._handle is None
