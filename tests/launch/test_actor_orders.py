"""``apexrl scale RUN``: idle actors come and go while a run goes on, and a resumed run keeps their number."""

from __future__ import annotations

import io
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from idle_roles import Actor, Learner
from recording_observer import Act, Watcher, small, with_actors
from rich.console import Console
from supervised import supervised

from apexrl.cli import main, scale_run
from apexrl.config import Config, StopConfig, convert
from apexrl.errors import ConfigError
from apexrl.launch import actor_orders, launch, local_run
from apexrl.launch.resumed_from import Base
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.wiring import Wiring
from apexrl.protocols import Item, Place
from apexrl.run import actor_order, worker_list
from apexrl.run.actor_order import ActorNumbers
from apexrl.run.folder import RunFolder
from apexrl.run.status import RunStatus
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, Program, gateway_cut, host_cut, topology
from new_folders import new_folder


def run(
    tmp_path: Path,
    act: Act,
    *,
    count: int = 2,
    most: int = 4,
    least: int = 1,
    deeds: dict[str, str] | None = None,
    restarts: int = 100,
) -> Watcher:
    """Idle actors, of which there may be ``most``, and a learner, until ``act`` stops them."""
    config = Config(name="run", out=str(tmp_path), stop=StopConfig(minutes=5.0))
    program = Program(config)
    program.role(Actor, count=count, most=most, least=least, restarts=restarts, deeds=deeds or {})
    program.role(Learner, deeds={})
    watcher = Watcher(act)
    folder = RunFolder(tmp_path / "run")
    if not folder.path.exists():
        folder = new_folder(config)
    folder.generations.begin()
    ledger = Ledger(config, folder, [watcher], Base(), time.monotonic())
    ledger.open()
    return supervised(program, config, ledger, watcher)


def at_work(status: RunStatus) -> list[str]:
    actors = [worker for worker in status.workers if worker.role == "actor"]
    return [one.name for one in actors if one.state in ("acting", "waiting")]


class Orders:
    """Orders numbers of actors in turn, each once the one before is at work, and then stops the run."""

    def __init__(self, folder: Path, *counts: int) -> None:
        self._folder = folder
        self._left = list(counts)
        self._awaited = 0

    def __call__(self, status: RunStatus) -> bool:
        if not status.workers or (self._awaited and len(at_work(status)) != self._awaited):
            return False
        if not self._left:
            return True
        self._awaited = self._left.pop(0)
        actor_order.write(self._folder, self._awaited)
        return False


def test_actors_come_and_go_as_ordered_and_others_go_on(tmp_path: Path) -> None:
    watcher = run(tmp_path, Orders(tmp_path / "run", 4, 1, 3))
    born = sorted(text.split()[1] for text in watcher.texts if text.startswith("born actor"))
    assert born == ["actor-0.0", "actor-1.0", "actor-1.1", "actor-2.0", "actor-2.1", "actor-3.0"]
    assert watcher.texts.count("closed actor-3 ") == 1
    assert not any("did not" in text for text in watcher.texts)
    assert "4 actors from now on, as apexrl scale asks; 2 before" in watcher.texts
    assert watcher.summary["restarts"] == {"actor": 0, "learner": 0}
    assert watcher.summary["actors"] == 3


def test_a_resumed_run_begins_with_the_number_that_was_ordered_last(tmp_path: Path) -> None:
    run(tmp_path, Orders(tmp_path / "run", 1))
    watcher = run(tmp_path, lambda status: len(at_work(status)) == 1)
    assert [text.split()[1] for text in watcher.texts if text.startswith("born actor")] == ["actor-0.0"]
    assert watcher.summary["actors"] == 1


def test_an_order_that_cannot_be_followed_is_told_once(tmp_path: Path) -> None:
    run(tmp_path, Orders(tmp_path / "run", 4))
    seen: list[int] = []
    watcher = run(tmp_path, lambda status: seen.append(1) or len(seen) > 8, most=3)  # type: ignore[func-returns-value]
    told = [text for text in watcher.texts if "asks for" in text]
    assert told == ["actors.json asks for 4 actors, and this run may have from 1 to 3: it goes on with 2"]
    assert watcher.summary["actors"] == 2


def test_one_that_rests_takes_the_place_of_one_that_is_given_up(tmp_path: Path) -> None:
    def act(status: RunStatus) -> bool:
        return at_work(status) == ["actor-1", "actor-2"]

    watcher = run(tmp_path, act, deeds={"0.0": "exit", "0.1": "exit"}, restarts=2)
    assert watcher.summary["given_up"] == ["actor-0"]
    assert watcher.summary["actors"] == 2


def ask(tmp_path: Path, *numbers: int, most: int = 4) -> tuple[list[Any], list[str]]:
    """What ``apexrl scale`` returns or refuses, and prints, for ``numbers`` of a run that goes on."""
    answers: list[Any] = []
    printed = io.StringIO()
    folder = tmp_path / "run"

    def command() -> None:
        deadline = time.monotonic() + 60.0
        while worker_list.read(folder) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        for actors in numbers:
            try:
                answers.append(scale_run.scale(folder, actors, 20.0, Console(file=printed, width=200)))
            except ConfigError as error:
                answers.append(str(error).replace(str(folder), "RUN"))

    asking = threading.Thread(target=command)
    asking.start()
    run(tmp_path, lambda status: not asking.is_alive(), most=most)
    asking.join()
    return answers, printed.getvalue().replace(str(folder), "RUN").splitlines()


def test_the_command_waits_until_the_run_has_heeded_it(tmp_path: Path) -> None:
    assert ask(tmp_path, 4, 4, 1) == (
        [0, 0, 0],
        ["RUN goes on with 4 actors (2 before, 4 at most)", "RUN goes on with 4 actors (4 before, 4 at most)",
         "RUN goes on with 1 actor (4 before, 4 at most)"],
    )  # fmt: skip


def test_numbers_that_cannot_be_are_refused_and_not_ordered(tmp_path: Path) -> None:
    answers, _ = ask(tmp_path, 0, 5)
    assert answers[0] == "--actors 0 is less than 1, the fewest that RUN may have"
    assert answers[1].startswith("--actors 5 is more than 4, for which RUN has room")
    assert not (tmp_path / "run" / actor_order.NAME).exists()


def test_the_number_of_a_role_that_cannot_grow_is_fixed(tmp_path: Path) -> None:
    answers, _ = ask(tmp_path, 2, most=0)
    assert answers == ["the number of actors of RUN cannot be changed: topology apex has a fixed number of them"]


def scale(folder: Path, actors: int = 2) -> tuple[int, str]:
    printed = io.StringIO()
    code = scale_run.scale(folder, actors, 0.3, Console(file=printed, width=200))
    return code, printed.getvalue().replace(str(folder), "RUN")


def test_a_run_that_nobody_trains_is_not_scaled(tmp_path: Path) -> None:
    folder = new_folder(Config(name="run", out=str(tmp_path)))
    assert scale(folder.path) == (1, "no process trains RUN now: apexrl resume RUN goes on with it\n")
    folder.write_summary({"stopped_by": "env_steps"})
    assert scale(folder.path) == (
        1, "no process trains RUN now (it ended: env_steps): apexrl resume RUN goes on with it\n"
    )  # fmt: skip
    worker_list.write(folder.path, [], lambda: None, ActorNumbers(2, 1, 4))
    path = folder.path / worker_list.NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "at": time.time() - 120}))  # killed by -9
    assert scale(folder.path)[0] == 1
    assert not (folder.path / actor_order.NAME).exists()


def test_a_main_process_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    folder = new_folder(Config(name="run", out=str(tmp_path)))
    worker_list.write(folder.path, [], lambda: None, ActorNumbers(2, 1, 4))
    assert scale(folder.path, 3) == (1, "RUN was asked to go on with 3 actors, and has not answered within 0 s\n")


@pytest.mark.parametrize(("settings", "why"), [({"serial": True}, "--serial"), ({}, "another version")])
def test_launchers_that_scale_nothing_are_named(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    folder = new_folder(convert.override(Config(name="run", out=str(tmp_path)), settings))
    worker_list.write(folder.path, [], lambda: None)
    with pytest.raises(ConfigError, match=why):
        scale_run.scale(folder.path, 2)


def test_the_command_knows_folders_from_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new_folder(Config(name="pendulum", out=str(tmp_path)))
    assert main.main(["scale", str(tmp_path / "pendulmu"), "--actors", "3"]) == main.USAGE
    said = capsys.readouterr().err.replace("\n", " ")
    assert "did you mean 'pendulum'?" in said
    assert "of a run over several hosts: --redis URL --run NAME" in said
    assert main.main(["scale", "--actors", "3"]) == main.USAGE
    assert "say whose actors: apexrl scale RUN" in capsys.readouterr().err
    assert main.main(["scale", "gpu-1", "--actors", "3", "--run", "cp"]) == main.USAGE
    assert "say which Redis server" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"actors": "4"}', '{"actors": true}', '{"actors": 65537}', "[" * 900]
)
def test_an_order_that_no_command_writes_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / actor_order.NAME).write_text(text)
    assert actor_order.read(tmp_path) == 0


def test_as_many_actors_may_be_ordered_as_a_run_may_have_slots(tmp_path: Path) -> None:
    most = actor_order.MOST_ACTORS
    actor_order.write(tmp_path, most)
    assert actor_order.read(tmp_path) == most
    convert.check_values(convert.override(Config(), {"actor_slots": most}))
    with pytest.raises(ConfigError, match="actor-slots"):
        convert.check_values(convert.override(Config(), {"actor_slots": most + 1}))


@pytest.mark.parametrize("numbers", ["7", "[1, 2]", '[1, 2, "x", ""]', "[1, 2, 3, 4, 5]"])
def test_numbers_that_no_run_writes_leave_the_list_out(tmp_path: Path, numbers: str) -> None:
    (tmp_path / worker_list.NAME).write_text(f'{{"at": 1, "host": "h", "workers": [], "actors": {numbers}}}')
    assert worker_list.read(tmp_path) is None


SPEC = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2))
UNROLLS = Probe(
    SPEC, {"logp": Field((), "float32", sampled=False)}, 64, Item("unroll", 5), ("gradients", "apply", "networks"),
    {"policy_value/online": 320, "policy_value/optimizer/steps": 1}, {"weight": Place("policy_value", 0, (320,))},
)  # fmt: skip
TRANSITIONS = Probe(
    SPEC, {"q": Field((2,), "float32", sampled=False)}, 64, Item(), ("gradients", "apply", "networks"),
    {"q/online": 32}, {"weight": Place("q", 0, (32,))},
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings", "role", "why"),
    [
        ("apex", {}, "actor", ""),
        ("seed", {}, "env_worker", ""),
        ("ga3c", {"agent": "a2c"}, "env_worker", ""),
        ("impala", {"agent": "impala"}, "actor", ""),
        ("sample_factory", {"agent": "appo"}, "rollout_worker", ""),
        ("a3c", {"agent": "a2c"}, "worker", ""),
        ("gorila", {}, "actor", ""),
        ("gorila", {"replay": "local", "learners": 2}, "actor", "each of several learners has actors of its own"),
        ("impala", {"agent": "impala", "learners": 2}, "actor", "each of several learners has actors of its own"),
        ("apex", {"autotune": True}, "actor", "--autotune finds out how many are best"),
    ],
)
def test_every_topology_can_be_scaled_or_says_why_not(name: str, settings: dict[str, Any], role: str, why: str) -> None:
    config = convert.override(Config(topology=name), {"actors": 2, "actor_slots": 4, **settings})
    program = topology(name)(config, UNROLLS if "agent" in settings else TRANSITIONS)
    actors = actor_orders.actors_of(program)
    assert actors is not None
    assert actors.name == role
    assert actor_orders.why_fixed(program, actors) == why
    if not why:
        assert len(actors.leases) == 4


def test_the_sides_of_a_run_over_several_hosts_say_where_to_scale() -> None:
    config = convert.override(Config(topology="apex"), {"actors": 2, "actor_slots": 4})
    whole = topology("apex")(config, TRANSITIONS)
    for side in (host_cut.learner_side(whole, {}), host_cut.actor_side(whole, [(2, 1), (3, 1)], {})):
        assert "apexrl scale HOST|all" in actor_orders.why_fixed(side, actor_orders.actors_of(side))
    seed = topology("seed")(replace(config, topology="seed"), TRANSITIONS)
    side = gateway_cut.gateway_side(seed, {"listen": "a listen", "record": "a record"})
    actors = actor_orders.actors_of(side)
    assert actors is not None
    assert len(actors.leases) == 2  # the other slots are other hosts'
    assert actor_orders.why_fixed(side, actors) == ""


@pytest.mark.long
def test_a_run_that_learns_is_scaled_up_and_down(tmp_path: Path) -> None:
    config = with_actors(small(tmp_path, stop=StopConfig(minutes=5.0)), actors=1, envs_per_actor=2, actor_slots=3)
    orders = Orders(tmp_path / "run", 3, 1)
    summary = launch(config, [watcher := Watcher(lambda status: status.updates > 5 and orders(status))])
    assert summary["stopped_by"] == "callback"
    assert summary["actors"] == 1
    assert summary["restarts"] == {"actor": 0, "learner": 0, "evaluator": 0}
    assert max(len(at_work(status)) for status in watcher.statuses) == 3


def test_a_saved_replay_has_room_for_the_actors_of_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "replay.snapshot"
    for slots in (2, 4):
        small_replay = {"actors": 2, "actor_slots": slots, "capacity": 4096, "min_size": 64}
        config = convert.override(Config(topology="apex"), small_replay)
        program = topology("apex")(config, TRANSITIONS)
        wiring = Wiring(program, False, path)
        actors = actor_orders.actors_of(program)
        assert actors is not None
        replay = wiring.ports(actors)["replay"]
        envs = config.actor.envs_per_actor
        columns = {one.name: one.field for one in replay.core.layout.columns}
        columns |= {"reward": Field((), "float32"), "terminated": Field((), "bool"), "truncated": Field((), "bool")}
        step = {name: np.zeros((envs, *field.shape), field.dtype) for name, field in columns.items()}
        writers = [replay.writer(streams=envs) for _ in range(slots)]
        for writer in writers:
            writer.append(step)
        replay.save(path)
        wiring.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor_slots": 5000}, "room for 4,096 actor slots, not 5,000: lower --actors and --actor-slots"),
        (
            {"actor_slots": 4096, "envs_per_actor": 17},
            "room for 65,536 environments, not 69,632: lower .*--envs-per-actor",
        ),
    ],
)
def test_more_slots_than_a_replay_has_room_for_are_refused(
    tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    program = topology("apex")(convert.override(Config(topology="apex"), changes), TRANSITIONS)
    with pytest.raises(ConfigError, match=message):
        Wiring(program, False, tmp_path / "none")


def test_a_run_that_its_replay_refuses_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lower --actors and --actor-slots"):
        launch(convert.override(small(tmp_path), {"actor_slots": 5000, "serial": True}))
    assert not list(tmp_path.iterdir())


def test_slots_for_more_workers_of_one_machine_leave_their_groups_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[Config] = []

    def wire(config: Config, probe: Probe) -> Program:
        settled.append(config)
        raise ConfigError("enough was seen")

    monkeypatch.setattr(local_run, "topology", lambda name: wire)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(ConfigError, match="enough was seen"):
        launch(convert.override(small(tmp_path), {"topology": "seed", "actors": 2, "actor_slots": 4}))
    assert [config.wiring.splits for config in settled] == [1]
