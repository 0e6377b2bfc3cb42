"""The driver's judgement of who does not come, or cannot be reached: with processes that are made up."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra ray")

from plain_roles import Actor, Learner
from ray.exceptions import ActorUnavailableError, RayTaskError

from apexrl.config import ActorConfig, Config
from apexrl.errors import ClosedError, ConfigError, WorkerError
from apexrl.launch.ledger import Base, Ledger
from apexrl.launch.ray import cluster, driver, ends, reception
from apexrl.launch.ray.actors import Ground, Hello, Look, Report, RoleProcess
from apexrl.launch.ray.driver import Driver
from apexrl.launch.ray.wishes import Wishes
from apexrl.launch.supervisor import Interrupts
from apexrl.links.control import RUN
from apexrl.run_folder import RunFolder, versions
from apexrl.spec import Field
from apexrl.status import RunStatus
from apexrl.topologies.program import Program


class Coming:
    """What will come of a call: a value, an error, or (as long as it has neither) nothing."""

    def __init__(self, *value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        (value,) = self.value
        if isinstance(value, BaseException):
            raise value
        return value


@dataclass
class Process:
    """An actor; ``never`` lists what it does not answer, ``fails`` what it answers once with an error."""

    kind: type
    place: int
    never: set[str] = field(default_factory=set)
    fails: dict[str, BaseException] = field(default_factory=dict)
    asked: int = 0
    killed: bool = False
    living: Coming = field(default_factory=Coming)

    def answer(self, method: str, arguments: tuple[Any, ...]) -> Coming:
        if method == "live":
            return self.living
        if method in self.never:
            return Coming()
        if method in self.fails:
            return Coming(self.fails.pop(method))
        if method == "hello":
            return Coming(Hello("here", "id", 1, {name: have for name, have in versions().items() if have}))
        if method == "look":
            return Coming(Look({"size": 7, "inserted": 9, "capacity": 10} if self.place else {}, 1, 0))
        if method == "poll":
            self.asked += 1
            if arguments[0].stop != RUN:
                self.living.value = (Report({"env_steps": self.asked}, pid=1, status=0),)
            return Coming(Report({"env_steps": self.asked}, pid=1))
        return Coming({})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Calling(lambda *arguments: self.answer(name, arguments))


class Calling:
    def __init__(self, remote: Callable[..., Any]) -> None:
        self.remote = remote


@dataclass
class World:
    """A cluster; ``trouble`` is told of every process that is made, with how many were made like it before."""

    trouble: Callable[[Process, int], None] = lambda process, before: None
    made: list[Process] = field(default_factory=list)
    namespace: str = "made-up"
    exceptions: Any = None

    def actor(self, kind: type, place: int, *_: Any, **__: Any) -> Any:
        def make(*arguments: Any) -> Process:
            process = Process(kind, place)
            self.trouble(process, len(self.of(kind, place)))
            self.made.append(process)
            return process

        return Calling(make)

    def of(self, kind: type, place: int) -> list[Process]:
        return [process for process in self.made if process.kind is kind and process.place == place]

    def reserve(self, bundles: Any, stopped: Any) -> None: ...
    def close(self) -> None: ...

    # --- what the driver asks Ray itself
    def wait(self, references: list[Coming], **_: Any) -> tuple[list[Coming], list[Coming]]:
        return [one for one in references if one.value], [one for one in references if not one.value]

    def get(self, reference: Coming, timeout: float = 0.0) -> Any:
        return reference.get()

    def kill(self, process: Process, no_restart: bool) -> None:
        process.killed = True

    def is_initialized(self) -> bool:
        return True


class Watcher:
    def __init__(self, until: Callable[[Watcher], bool]) -> None:
        self.until = until
        self.texts: list[str] = []
        self.status = RunStatus()

    def update(self, status: RunStatus) -> bool:
        self.status = status
        return self.until(self)

    def message(self, text: str, level: str = "info") -> None:
        self.texts.append(text)

    def started(self, config: Config, folder: Path) -> None: ...
    def event(self, kind: str, values: dict[str, Any]) -> None: ...
    def finished(self, summary: dict[str, Any]) -> None: ...


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    for module in (driver, cluster):
        monkeypatch.setattr(module, "ray", world)
    monkeypatch.setattr(driver, "Cluster", lambda *_, **__: world)
    monkeypatch.setattr(driver, "HELLO_SECONDS", 0.3)
    return world


def run(out: Path, until: Callable[[Watcher], bool] = lambda watcher: False) -> Watcher:
    """A learner, and two groups with two actors each."""
    config = Config(name="run", out=str(out), actor=ActorConfig(actors=4))
    whole = Program(config)
    replay = whole.replay(capacity=10, fields={"a": Field((), "int64")}, kind="transition", min_size=1)
    weights = whole.weights(8)
    whole.role(Learner, replay=replay, weights=weights, restarts=5)
    whole.role(Actor, count=4, replay=replay, weights=weights, deeds={}, restarts=5)
    watcher, deadline = Watcher(until), time.monotonic() + 60.0
    watcher.until = lambda watcher: until(watcher) or time.monotonic() > deadline
    folder = RunFolder.create(config)
    wishes = Wishes("made:1", replay_shards=2, wait_seconds=0.0)
    with Interrupts() as interrupts, closing(Driver(config, wishes, interrupts)) as run:
        ledger = Ledger(config, folder, [watcher], Base(), time.monotonic())
        try:
            run.settle([{"CPU": 1.0}] * 3)
            run.run(whole, ledger)
            assert run._sums["env_steps"] == sum(place.total("env_steps") for place in run._places()) > 0
        finally:
            ledger.close()
    assert time.monotonic() < deadline
    return watcher


@pytest.mark.parametrize("kind", [Ground, RoleProcess])
def test_a_learner_without_a_place_ends_the_run(world: World, tmp_path: Path, kind: type) -> None:
    def trouble(process: Process, before: int) -> None:
        if process.place == 0 and process.kind is kind:
            process.never = {"hello", "poll"}

    world.trouble = trouble
    with pytest.raises(WorkerError, match=r"learner's place has not begun to work within 0.3 s: .* no room"):
        run(tmp_path)


def test_actors_without_any_place_end_the_run(world: World, tmp_path: Path) -> None:
    def trouble(process: Process, before: int) -> None:
        process.never = {"hello"} if process.place else set()

    world.trouble = trouble
    with pytest.raises(WorkerError, match="no group of actors has begun to work"):
        run(tmp_path)


def test_a_group_without_a_place_is_said_once_and_the_others_go_on(world: World, tmp_path: Path) -> None:
    def trouble(process: Process, before: int) -> None:
        process.never = {"hello"} if process.place == 2 else set()

    world.trouble = trouble
    late: list[int] = []

    def until(watcher: Watcher) -> bool:
        late.extend([watcher.status.env_steps] * any("shard-1" in text for text in watcher.texts))
        return bool(late) and watcher.status.env_steps > late[0] + 10

    watcher = run(tmp_path, until)
    assert sum("shard-1 has not begun to work within" in text for text in watcher.texts) == 1


@pytest.mark.parametrize("kind", [Ground, RoleProcess])
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


def test_a_node_with_other_versions_that_comes_later_ends_the_run_in_good_order(world: World, tmp_path: Path) -> None:
    other = Hello("node7", "id", 1, {"apexrl": "0.0"})
    again: list[Process] = []

    def trouble(process: Process, before: int) -> None:
        if process.place == 1 and process.kind is Ground:
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
    monkeypatch.setattr(reception, "ray", world)
    said = pytest.raises(ConfigError, match=r"No module named 'apexrl'.*install the same packages on every node")
    with Interrupts() as interrupts, said:
        reception._await([Coming(error)], 1.0, "late", interrupts)


def test_a_shard_is_found_in_whatever_life_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"shard-1.0": "dying", "shard-1.17": "seventeenth", "shard-1.9": "ninth", "shard-11.30": "another's"}
    known = [{"name": name, "namespace": "mine"} for name in there]
    known += [{"name": "shard-1.40", "namespace": "yours"}, {"name": "else", "namespace": "mine"}]
    monkeypatch.setattr(ends, "list_named_actors", lambda all_namespaces: known)

    def get_actor(name: str, namespace: str) -> str:
        assert namespace == "mine"
        if name == "shard-1.17" and there[name] == "gone":
            raise ValueError(name)
        return there[name]

    monkeypatch.setattr(ends.ray, "get_actor", get_actor)
    end = ends.RayEnd("shard-1", "mine")
    assert end._find()
    assert end._handle == "seventeenth"
    there["shard-1.17"] = "gone"
    end._searched = -1e9
    assert end._find()
    assert end._handle == "ninth"


def test_a_late_error_of_one_life_does_not_forget_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    end = ends.RayEnd("shard-0", "mine")
    monkeypatch.setattr(ends.ray, "get", Coming.get)
    lost = ActorUnavailableError("it went", b"x" * 16)
    old = ends.RayAnswer(end, "life a", Coming(lost))
    end._handle = "life b"
    with pytest.raises(ClosedError, match="this shard was lost"):
        old.take()
    assert end._handle == "life b"
    with pytest.raises(ClosedError):
        ends.RayAnswer(end, "life b", Coming(lost)).take()
    assert end._handle is None
