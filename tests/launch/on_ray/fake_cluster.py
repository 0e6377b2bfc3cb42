"""A cluster that is made up: its actors answer, do not, or fail as a test says, and the driver knows no difference."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from plain_roles import Actor, Learner
from ray.exceptions import GetTimeoutError, RayActorError

from apexrl.config import ActorConfig, Config
from apexrl.config.placement import Ray
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.ray import cluster, driver, group_control, ray_slots
from apexrl.launch.ray.driver import Driver
from apexrl.launch.ray.group_plan import most_actors, plan
from apexrl.launch.ray.ray_actors import Hello, Look, Report
from apexrl.launch.resumed_from import Base
from apexrl.launch.run_ledger import Ledger
from apexrl.links.local.control_board import RUN
from apexrl.links.local.inference import InferenceLink
from apexrl.links.local.worker_messages import Message
from apexrl.run.folder import versions
from apexrl.run.status import RunStatus
from apexrl.spec import Field
from apexrl.topologies.program import Program
from new_folders import new_folder

LEASE = 0.5


class Coming:
    """What will come of a call: a value, an error, or (as long as it has neither) nothing."""

    def __init__(self, *value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        if not self.value:
            raise GetTimeoutError
        (value,) = self.value
        if isinstance(value, BaseException):
            raise value
        return value


@dataclass
class Process:
    """An actor; ``never`` lists what it does not answer, ``fails`` what it answers once with an error. One that is
    ``deaf`` goes on when it is told to stop."""

    kind: type
    place: int
    never: set[str] = field(default_factory=set)
    fails: dict[str, BaseException] = field(default_factory=dict)
    asked: int = 0
    quiet: float = 0.0  # seconds since its loop went on, as it says
    met: dict[int, Any] = field(default_factory=dict)
    killed: bool = False
    deaf: bool = False
    refused: dict[int, str] = field(default_factory=dict)
    unanswered: list[Coming] = field(default_factory=list)
    living: Coming = field(default_factory=Coming)
    greeting: Coming = field(default_factory=Coming)

    def greet(self) -> None:
        """Say hello, also to whom it was never to be said."""
        self.greeting.value = (Hello("here", "id", 1, {name: have for name, have in versions().items() if have}),)

    def fail(self, fatal: bool = False) -> None:
        """A role's generation ends with an error; ``fatal``: another generation would repeat it."""
        error = {"error": "EnvError: the disk is full", "fatal": fatal, "traceback": "its traceback"}
        self.living.value = (Report({}, [Message("error", error)], pid=1, status=1),)

    def answer(self, method: str, arguments: tuple[Any, ...]) -> Coming:
        if method == "run":
            return self.living
        if method == "hello" and method not in self.fails:
            if method not in self.never:
                self.greet()
            return self.greeting
        if method == "meet":
            self.met[arguments[0]] = arguments[1]
            self.refused.pop(arguments[0], None)
        if method in self.never:
            self.unanswered.append(Coming())
            return self.unanswered[-1]
        if method in self.fails:
            return Coming(self.fails.pop(method))
        if method == "look":
            if self.place:
                return Coming(Look({"size": 7, "inserted": 9, "capacity": 10}, 1, 0))
            return Coming(Look({}, 1, 0, dict(self.refused)))
        if method == "poll":
            self.asked += 1
            if arguments[0].stop != RUN and not self.deaf:
                self.living.value = (Report({"env_steps": self.asked}, pid=1, status=0),)
            return Coming(Report({"env_steps": self.asked}, pid=1, state="acting", quiet_seconds=self.quiet))
        if method == "stacks":
            return Coming("its stacks")
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
    wanted: dict[int, dict[str, float]] = field(default_factory=dict)
    places: set[int] = field(default_factory=set)  # of those wanted, that there are
    left: set[int] = field(default_factory=set)
    local_cpus: float = 0.0
    closed: bool = False
    waits: int = 0  # calls
    refused: dict[int, str] = field(default_factory=dict)  # what home says of groups that take no weights

    def connect(self, _: Ray, local_cpus: float) -> World:
        self.local_cpus = local_cpus
        return self

    def actor(self, kind: type, place: int, *_: Any, **__: Any) -> Any:
        def make(*arguments: Any) -> Process:
            process = Process(kind, place, refused=self.refused)
            self.trouble(process, len(self.of(kind, place)))
            self.made.append(process)
            return process

        return Calling(make)

    def of(self, kind: type, place: int) -> list[Process]:
        return [process for process in self.made if process.kind is kind and process.place == place]

    def reserve(self, bundles: Any, stopped: Any) -> None:
        self.reserved = list(bundles)

    def want(self, number: int, bundle: dict[str, float]) -> None:
        self.wanted[number] = bundle

    def give_back(self, number: int) -> None:
        self.left.add(number)

    def room(self) -> set[int]:
        return set(self.places)

    def close(self) -> None:
        self.closed = True

    # --- what the driver asks Ray itself
    def wait(self, references: list[Coming], timeout: float, **_: Any) -> tuple[list[Coming], list[Coming]]:
        self.waits += 1
        if not all(one.value for one in references):
            time.sleep(timeout)
        return [one for one in references if one.value], [one for one in references if not one.value]

    def get(self, reference: Coming, timeout: float = 0.0) -> Any:
        return reference.get()

    def kill(self, process: Process, no_restart: bool) -> None:
        process.killed = True
        process.living.value = process.living.value or (RayActorError(),)

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


def make_up(monkeypatch: pytest.MonkeyPatch, patience: float = 30.0) -> World:
    """In Ray's place; for ``patience`` seconds the driver waits for whoever does not come."""
    world = World()
    for module in (driver, group_control, cluster):
        monkeypatch.setattr(module, "ray", world)
    monkeypatch.setattr(driver, "Cluster", world.connect)
    monkeypatch.setattr(driver, "HELLO_SECONDS", patience)
    monkeypatch.setattr(ray_slots, "LEASE_SECONDS", LEASE)
    return world


def run(
    out: Path,
    until: Callable[[Watcher], bool] = lambda watcher: False,
    most: int = 4,
    shards: int = 2,
    restarts: int = 5,
    env_timeout: float | None = None,
    least: int = 0,
    stall_timeout: float = 300.0,
    asks: bool = False,
) -> Watcher:
    """A learner, and two groups with two actors each, or more that come later. ``asks``: actors ask a server beside the
    learner, instead of filling shards."""
    actor = ActorConfig(actors=4, actor_slots=most, actor_restarts=restarts)
    config = Config(name="run", out=str(out), actor=actor, stall_timeout=stall_timeout)
    whole = Program(config)
    replay = whole.replay(capacity=10, fields={"a": Field((), "int64")}, kind="transition", min_size=1)
    links: dict[str, Any] = {"replay": replay, "weights": whole.weights(8)}
    if asks:
        links = {"inference": whole.link(InferenceLink.make)}
    fragile: dict[str, Any] = {"restarts": restarts, "env_timeout": env_timeout, "least": least, "moves": True}
    whole.role(Actor, count=most_actors(config), most=most_actors(config), **links, deeds={}, **fragile)
    whole.role(Learner, **links, restarts=5)
    watcher, deadline = Watcher(until), time.monotonic() + 60.0
    watcher.until = lambda watcher: until(watcher) or time.monotonic() > deadline
    folder = new_folder(config)
    placement = Ray("made:1", replay_shards=shards, wait_seconds=0.0)
    with Interrupts() as interrupts, closing(Driver(config, placement, interrupts)) as run:
        ledger = Ledger(config, folder, [watcher], Base(), time.monotonic())
        try:
            run.settle(plan(config, placement, 2))
            run.run(whole, ledger)
            assert run._sums["env_steps"] == sum(place.total("env_steps") for place in run._slots()) > 0
        finally:
            ledger.close()
    assert time.monotonic() < deadline
    return watcher
