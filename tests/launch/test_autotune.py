"""Live workers come and go: the supervisor with idle roles and a tuner that follows a script, then whole runs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from idle_roles import Actor, Learner, Turned
from recording_observer import Act, Watcher, small, with_actors
from scripted_tuner import Script
from supervised import supervised

from apexrl.config import Config, StopConfig, WiringConfig, convert
from apexrl.config.placement import Redis
from apexrl.errors import ConfigError
from apexrl.launch import autotune, launch, local_run, supervisor
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.resumed_from import Base
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.supervisor import Supervisor
from apexrl.launch.tuner import Tuner
from apexrl.launch.wiring import Wiring
from apexrl.links.local.control_board import ControlBoard
from apexrl.run.folder import RunFolder
from apexrl.run.metrics import read_rows
from apexrl.run.status import RunStatus
from apexrl.topologies import Probe, Program
from apexrl.topologies.apex import apex
from new_folders import new_folder

WINDOW_SECONDS = 0.5


def tune(
    tmp_path: Path,
    deeds: dict[str, str],
    *,
    count: int = 1,
    most: int = 4,
    act: Act = lambda status: None,
    seconds: float = WINDOW_SECONDS,
    restarts: int = 100,
) -> Watcher:
    """Idle actors, of which there may be ``most``, and a learner, until ``act`` or the script's end stops them."""
    config = Config(
        name="run",
        out=str(tmp_path),
        stop=StopConfig(minutes=5.0),
        wiring=WiringConfig(autotune=True, autotune_seconds=seconds),
    )
    program = Program(config)
    program.role(Actor, count=count, most=most, least=1, restarts=restarts, deeds=deeds)
    program.role(Learner, deeds={})
    watcher = Watcher(lambda status: act(status) or len(watcher.said("tuning")) > len(Script.settings))
    folder = new_folder(config)
    ledger = Ledger(config, folder, [watcher], Base(), time.monotonic())
    return supervised(program, config, ledger, watcher)


def actors(status: RunStatus) -> list[str]:
    return [worker.name for worker in status.workers if worker.role == "actor"]


def born(watcher: Watcher) -> list[str]:
    return [text.split()[1] for text in watcher.texts if text.startswith("born actor")]


def test_workers_are_added_and_removed_while_the_run_goes_on(tmp_path: Path, script: Callable[..., None]) -> None:
    script(3, 1, 2)
    watcher = tune(tmp_path, {})
    assert watcher.summary["stopped_by"] == "callback"
    assert sorted(born(watcher)) == ["actor-0.0", "actor-1.0", "actor-1.1", "actor-2.0"]
    assert {1, 3} <= {len(actors(status)) for status in watcher.statuses} <= {1, 2, 3}
    assert watcher.texts.count("closed actor-1 ") == 2  # it left cleanly, and did so again at the end
    assert watcher.texts.count("closed actor-2 ") == 1
    assert watcher.summary["restarts"] == {"actor": 0, "learner": 0}
    seeds = [text.split()[3] for text in watcher.texts if text.startswith("born actor")]
    assert len(set(seeds)) == 4
    assert [values["setting"]["actor"] for values in watcher.said("tuning")] == [1, 3, 1, 2]
    assert [rate > 0 for rate in Script.made[0].rates] == [True] * 4
    assert Script.made[0].bounds == {"actor": (1, 4)}
    steps = [status.env_steps for status in watcher.statuses]
    assert steps == sorted(steps)


def test_another_worker_is_called_where_one_was_given_up(tmp_path: Path, script: Callable[..., None]) -> None:
    script(2, 4, 3)
    watcher = tune(tmp_path, {"0.0": "exit"}, count=2, restarts=2)
    assert watcher.summary["given_up"] == ["actor-0"]
    assert "actor-2.0" in born(watcher)
    assert Script.made[0].limits == [("actor", 3)]
    measured = [values["setting"]["actor"] for values in watcher.said("tuning") if values["verdict"] != "limited"]
    assert measured == [2, 2, 3]
    assert actors(watcher.statuses[-1]) == ["actor-0", "actor-1", "actor-2", "actor-3"]
    assert not any(text.startswith("born actor-0.1") for text in watcher.texts)


@pytest.mark.long
def test_an_added_worker_that_is_killed_gets_another_life(tmp_path: Path, script: Callable[..., None]) -> None:
    script(3, 1)
    killed: list[int] = []

    def act(status: RunStatus) -> None:
        added = [worker for worker in status.workers if worker.name == "actor-2" and worker.state == "acting"]
        if added and not killed and added[0].pid:
            killed.append(added[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    watcher = tune(tmp_path, {}, act=act, seconds=3.0)  # so long that it is seen at work before its window is over
    assert watcher.summary["restarts"]["actor"] == 1
    assert sorted(born(watcher)) == ["actor-0.0", "actor-1.0", "actor-2.0", "actor-2.1"]
    assert [values["setting"]["actor"] for values in watcher.said("tuning")] == [1, 3, 1]  # 3 was measured once more


def test_the_run_may_stop_while_workers_come(tmp_path: Path, script: Callable[..., None]) -> None:
    script(4, 4, 4)
    watcher = tune(tmp_path, {}, act=lambda status: len(actors(status)) == 4)
    assert watcher.summary["stopped_by"] == "callback"


def test_the_run_may_stop_while_workers_leave(
    tmp_path: Path, script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Actor, "traits", replace(Actor.traits, grace_seconds=0.3))
    script(3, 1, 1, 1)

    def act(status: RunStatus) -> bool:
        return len(Script.made[0].rates) == 2 and "actor-2" in actors(status)  # which was asked to leave

    watcher = tune(tmp_path, {"2.0": "never stops"}, act=act)
    assert watcher.summary["stopped_by"] == "callback"
    assert "actor-2 did not stop in time and was killed" in watcher.texts
    assert not any("did not leave" in text for text in watcher.texts)


def test_a_worker_that_does_not_leave_is_killed(
    tmp_path: Path, script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LEAVE_SECONDS", 0.3)
    script(2, 1)
    watcher = tune(tmp_path, {"1.0": "never stops"})
    assert "actor-1 did not leave cleanly: was killed by signal 9" in watcher.texts
    assert watcher.summary["restarts"]["actor"] == 0
    assert [values["setting"]["actor"] for values in watcher.said("tuning")] == [1, 2, 1]


def test_a_worker_that_cannot_be_added_is_done_without(tmp_path: Path, script: Callable[..., None]) -> None:
    script(3, 4, 4)
    watcher = tune(tmp_path, {f"2.{generation}": "raise at once" for generation in range(100)})
    assert watcher.summary["stopped_by"] == "callback"
    assert Script.made[0].limits == [("actor", 2)]
    assert any("3 × actor cannot be run: EnvError: no licence" in text for text in watcher.texts)
    assert len(actors(watcher.statuses[-1])) == 2
    assert [values["rate"] is None or values["rate"] > 0 for values in watcher.said("tuning")].count(True) >= 3


def test_a_real_tuner_says_what_it_found(tmp_path: Path) -> None:
    def act(status: RunStatus) -> bool:
        told = watcher.said("tuning")
        return len(told) > 6 and any(values["setting"]["actor"] > 1 for values in told)

    watcher = Watcher(act)
    config = with_actors(small(tmp_path, stop=StopConfig(minutes=5.0)), actors=1, envs_per_actor=2, actor_slots=3)
    config = replace(config, wiring=WiringConfig(autotune=True, autotune_seconds=0.5))
    summary = launch(config, [watcher])
    watched = watcher.said("tuning")
    assert summary["stopped_by"] == "callback"
    assert "error" not in summary
    found = summary["autotune"]
    assert found["windows"] == len(watched)
    assert 1 <= found["best"]["actor"] <= 3
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "tuning"]
    assert [row["setting"] for row in rows] == [values["setting"] for values in watched]
    moved = [row for row in rows if row["env_steps_per_second"] > 0 and row["updates_per_second"] > 0]
    assert len(moved) > len(rows) / 2  # in some windows a busy machine may do nothing else
    assert summary["restarts"] == {"actor": 0, "learner": 0, "evaluator": 0}
    assert summary["updates"] > 20
    assert "actor_slots = 3" in (tmp_path / "run" / "config.toml").read_text()


# Knobs, and what is refused.


def test_a_knob_is_turned_inside_a_worker(
    tmp_path: Path, script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Script, "settings", [{"thread": 3}, {"thread": 1}])
    config = Config(name="run", out=str(tmp_path), wiring=WiringConfig(autotune=True, autotune_seconds=WINDOW_SECONDS))
    program = Program(config)
    program.role(Turned, knob=program.thread_count("thread", start=2, most=5), deeds={})
    watcher = Watcher(lambda status: len(watcher.said("tuning")) == 3)
    folder = new_folder(config)
    ledger = Ledger(config, folder, [watcher], Base(), time.monotonic())
    with Interrupts() as interrupts:
        boss = Supervisor(config, interrupts, preload=["idle_roles"])
        try:
            boss.run(program, ledger, ControlBoard(1), Wiring(program, True, folder.replay_path))
        finally:
            boss.close()
    ledger.close()
    assert Script.made[0].bounds == {"thread": (1, 5)}
    assert [text for text in watcher.texts if text.startswith("threads")] == ["threads 2", "threads 3", "threads 1"]


def test_taking_turns_in_one_process_is_refused() -> None:
    config = convert.override(Config(), {"serial": True, "autotune": True})
    with pytest.raises(ConfigError, match="--serial cannot go with --autotune"):
        convert.check_values(config)


def test_several_hosts_are_refused(tmp_path: Path) -> None:
    config = convert.override(small(tmp_path), {"autotune": True})
    with pytest.raises(ConfigError, match="--autotune tunes one machine"):
        launch(config, placement=Redis("redis://localhost:1"))


def test_a_topology_with_nothing_to_tune_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(config: Config, probe: Probe) -> Program:
        program = apex(config, probe)
        program.nodes[:] = [replace(node, most=0) for node in program.nodes]
        return program

    monkeypatch.setattr(local_run, "topology", lambda name: fixed)
    with pytest.raises(ConfigError, match="topology apex has no numbers that could be tuned"):
        launch(convert.override(small(tmp_path), {"autotune": True}))


def test_the_most_actors_are_as_said_or_four_times_as_many() -> None:
    from apexrl.topologies.program import room, with_room

    for given, most in (({"actors": 2}, 16), ({"actors": 8}, 32), ({"actors": 2, "actor_slots": 5}, 5)):
        config = convert.override(Config(), {**given, "autotune": True})
        assert room(with_room(config)) == most
    assert room(convert.override(Config(), {"actors": 3})) == 3
    assert room(convert.override(Config(), {"actors": 3, "actor_slots": 5})) == 5


def test_a_tuner_is_what_drives_a_run() -> None:
    assert autotune.Tuner is Tuner


def test_the_run_folder_names_the_picture(tmp_path: Path) -> None:
    from apexrl.report.curves import tuning_picture

    rows = [
        {"kind": "tuning", "wall_seconds": 10.0 * i, "window": i, "setting": {"actor": 1 + i % 4}, "rate": 5.0 + i % 4,
         "best": {"actor": min(4, 1 + i // 5)}, "verdict": "adopted" if i % 5 == 0 else "kept", "gain": 0.1}
        for i in range(30)
    ]  # fmt: skip
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = RunFolder(tmp_path).autotune_path
    assert tuning_picture(metrics, target, "a run")
    assert target.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
