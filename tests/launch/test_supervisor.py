"""The supervisor with idle roles: real processes, no PyTorch, no replay."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from idle_roles import Actor, Learner
from recording_observer import Act, Watcher, all_gone

from apexrl.config import Config, StopConfig
from apexrl.errors import NonFiniteError, WorkerError
from apexrl.launch import worker_slots
from apexrl.launch.fork_client import PRELOAD, preloaded
from apexrl.launch.interrupts import ONCE_SECONDS, Interrupts
from apexrl.launch.resumed_from import Base
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.supervisor import Supervisor
from apexrl.launch.wiring import Wiring
from apexrl.launch.worker_slots import Slot
from apexrl.links.local.control_board import HURRY, STOP, ControlBoard
from apexrl.roles.role_traits import RoleTraits
from apexrl.topologies.program import Program
from new_folders import new_folder


def supervise(
    tmp_path: Path,
    deeds: dict[str, str],
    *,
    count: int = 2,
    stop: StopConfig | None = None,
    restarts: int = 100,
    env_timeout: float | None = None,
    least: int = 0,
    stall_timeout: float = 300.0,
    act: Act = lambda status: None,
    role: Any = Actor,
    leased: dict[str, tuple[int, ...]] | None = None,
    log_format: Literal["text", "json"] = "text",
    **ports: Any,
) -> Watcher:
    """Run ``count`` idle workers to their end."""
    config = Config(name="run", out=str(tmp_path), stop=stop or StopConfig(env_steps=60), stall_timeout=stall_timeout)
    config = replace(config, log_format=log_format)
    program = Program(config)
    program.role(role, count=count, restarts=restarts, env_timeout=env_timeout, least=least, deeds=deeds, **ports)
    program.nodes[-1] = replace(program.nodes[-1], **(leased or {}))  # type: ignore[arg-type]
    watcher = Watcher(act)
    folder = new_folder(config)
    ledger = Ledger(config, folder, [watcher], Base(), time.monotonic())
    ledger.open()
    with Interrupts() as interrupts:
        boss = Supervisor(config, interrupts, preload=["idle_roles"])
        try:
            boss.run(program, ledger, ControlBoard(count), Wiring(program, True, folder.replay_path))
        finally:
            boss.close()
    ledger.close()
    return watcher


def test_counts_until_the_step_limit_and_ends_in_good_order(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {})
    assert watcher.summary["stopped_by"] == "env_steps"
    assert watcher.summary["env_steps"] >= 60
    assert watcher.summary["restarts"] == {"actor": 0}
    assert {"closed actor-0 ", "closed actor-1 "} <= set(watcher.texts)
    assert all_gone(int(text.split()[2]) for text in watcher.texts if text.startswith("born"))


def test_every_life_of_every_slot_has_its_own_seed(tmp_path: Path) -> None:
    def act(status: Any) -> bool:
        return status.workers[0].restarts == 1 and all(worker.state == "acting" for worker in status.workers)

    watcher = supervise(tmp_path, {"0.0": "exit"}, act=act, stop=StopConfig(minutes=5.0))
    born = [text.split() for text in watcher.texts if text.startswith("born")]
    assert sorted(words[1] for words in born) == ["actor-0.0", "actor-0.1", "actor-1.0"]
    assert len({words[3] for words in born}) == 3


def test_a_killed_worker_gets_another_life_and_counters_go_on(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {"0.0": "kill", "0.1": "kill"}, count=1)
    assert watcher.summary["restarts"]["actor"] == 2
    assert watcher.summary["env_steps"] >= 60
    steps = [status.env_steps for status in watcher.statuses]
    assert steps == sorted(steps)


def test_a_worker_killed_from_outside_again_and_again_is_not_given_up(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {f"0.{generation}": "kill" for generation in range(6)}, count=1)
    assert watcher.summary["restarts"]["actor"] == 6


def test_unexplained_ends_show_the_log(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {"0.0": "exit"}, count=1)
    assert any("actor-0: ended with exit code 7" in text for text in watcher.texts)
    assert "last words" in (tmp_path / "run" / "logs" / "actor-0.log").read_text()


def test_a_run_whose_workers_always_fail_ends_with_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"all 2 actors fail always") as caught:
        supervise(tmp_path, {"*": "raise"})
    assert "EnvError: broken in actor-" in str(caught.value)
    assert "idle_roles.py" in str(caught.value)


def test_failing_in_the_constructor_counts_the_same(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="no licence"):
        supervise(tmp_path, {"*": "raise at once"}, count=1)


@pytest.mark.parametrize("least", [0, 2])
def test_a_bad_actor_ends_the_run_that_needs_it(tmp_path: Path, least: int) -> None:
    deeds = {f"0.{generation}": "raise" for generation in range(9)}
    # two failures within two seconds of their starts; up to five, where generations begin slowly
    with pytest.raises(WorkerError, match=r"actor-0 failed [2-5] times, and 4 restarts are allowed"):
        supervise(tmp_path, deeds, restarts=4, least=least, stop=StopConfig(minutes=5.0))


def test_a_bad_actor_is_done_without_while_enough_are_left(tmp_path: Path) -> None:
    deeds = {f"0.{generation}": "raise" for generation in range(9)}
    states: list[str] = []

    def act(status: Any) -> bool:
        if status.phase != "stopping":
            states[:] = [worker.state for worker in status.workers]
        return states[0] == "failed" and status.env_steps > 100

    watcher = supervise(tmp_path, deeds, restarts=4, least=1, act=act, stop=StopConfig(minutes=5.0))
    assert watcher.summary["stopped_by"] == "callback"
    assert watcher.summary["given_up"] == ["actor-0"]
    (told,) = [text for text in watcher.texts if "the run goes on without actor-0: it failed" in text]
    assert "and 4 restarts are allowed" in told
    assert "broken in actor-0" in told
    assert not any("actor-0" in text for text in watcher.texts[watcher.texts.index(told) + 1 :])
    assert states == ["failed", "acting"]


def test_the_last_of_each_queue_is_needed(tmp_path: Path) -> None:
    """Actors 0 and 2 serve one queue, actor 1 another one."""
    deeds = {f"{index}.{generation}": "raise" for index in (0, 1) for generation in range(9)}
    with pytest.raises(WorkerError, match="actor-1 failed"):
        supervise(tmp_path, deeds, count=3, restarts=4, least=1, stop=StopConfig(minutes=5.0), queue_0=1, queue_1=2)


@pytest.mark.parametrize("deed", ["kill", "terminate"])
def test_lives_that_others_end_cost_nothing(tmp_path: Path, deed: str) -> None:
    watcher = supervise(tmp_path, {f"0.{generation}": deed for generation in range(4)}, count=1, restarts=1)
    assert watcher.summary["restarts"]["actor"] == 4


def test_a_fatal_error_ends_the_run_under_its_own_class(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="actor-1: the loss is nan"):
        supervise(tmp_path, {"1.0": "not finite"}, stop=StopConfig(minutes=5.0))


def test_a_hanging_environment_call_is_killed_and_counted(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {"0.0": "hang"}, count=1, env_timeout=0.4)
    assert watcher.summary["restarts"]["actor"] == 1
    assert watcher.summary["dropped"]["hung_env_calls"] == 1
    assert any("took longer than 0.4 s" in text for text in watcher.texts)


def test_an_end_without_a_traceback_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(WorkerError) as caught:
        supervise(tmp_path, {"*": "exit at once"}, count=1)
    text = str(caught.value)
    assert "actor-0 failed 3 times in a row: ended with exit code 3" in text
    assert text.count("exit code 3") == 1


def test_environment_calls_that_always_hang_are_said_once_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(WorkerError) as caught:
        supervise(tmp_path, {"*": "hang at once"}, count=1, env_timeout=0.2)
    text = str(caught.value)
    assert "actor-0 failed 3 times in a row: an environment call took longer than 0.2 s (--env-timeout)" in text
    assert text.count("took longer") == 1
    assert "raise --env-timeout" in text


def test_simulators_die_with_their_worker_even_in_a_session_of_their_own(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    killed: list[int] = []

    def act(status: Any) -> bool:
        (worker,) = status.workers
        if not killed and worker.pid and pids.exists() and len(pids.read_text().split()) == 2:
            killed.append(worker.pid)
            os.kill(killed[0], signal.SIGKILL)
        return bool(killed) and worker.restarts == 1

    watcher = supervise(tmp_path, {"0.0": "spawn"}, count=1, pid_file=str(pids), act=act, stop=StopConfig(minutes=5.0))
    assert watcher.summary["restarts"]["actor"] == 1
    assert all_gone(int(pid) for pid in pids.read_text().split())


def test_a_callback_stops_the_run(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {}, act=lambda status: status.env_steps > 5, stop=StopConfig())
    assert watcher.summary["stopped_by"] == "callback"


def test_the_first_interrupt_ends_in_good_order(tmp_path: Path) -> None:
    sent: list[int] = []

    def act(status: Any) -> None:
        if status.env_steps > 0 and not sent:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    watcher = supervise(tmp_path, {}, act=act, stop=StopConfig())
    assert watcher.summary["stopped_by"] == "interrupted"
    assert not any("interrupted again" in text for text in watcher.texts)
    assert "closed actor-0 hurried" in watcher.texts


def test_a_second_interrupt_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_slots, "_HURRIED_SECONDS", 300.0)  # nobody is killed for being late
    sent: list[float] = []

    def act(status: Any) -> None:
        now = time.monotonic()
        if status.env_steps > 0 and (not sent or (len(sent) == 1 and now - sent[0] >= ONCE_SECONDS)):
            sent.append(now)
            os.kill(os.getpid(), signal.SIGINT)

    watcher = supervise(tmp_path, {"*": "never stops"}, act=act, stop=StopConfig())
    assert watcher.summary["stopped_by"] == "interrupted"
    assert "interrupted again: killing every worker" in watcher.texts
    assert all_gone(int(text.split()[2]) for text in watcher.texts if text.startswith("born"))


def test_an_observer_that_raises_ends_the_run_and_leaves_nobody(tmp_path: Path) -> None:
    pids: list[int] = []

    def act(status: Any) -> None:
        pids.extend(worker.pid for worker in status.workers if worker.pid)
        if pids:
            raise ZeroDivisionError("in a callback")

    with pytest.raises(ZeroDivisionError):
        supervise(tmp_path, {}, act=act, stop=StopConfig())  # no end of its own, which could come first
    assert pids
    assert all_gone(pids)


def test_the_death_of_the_fork_server_ends_everything(tmp_path: Path) -> None:
    pids: list[int] = []

    def act(status: Any) -> None:
        if not pids and all(worker.pid for worker in status.workers):
            pids.extend(worker.pid for worker in status.workers)
            pids.append(int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1]))
            os.kill(pids[-1], signal.SIGKILL)

    with pytest.raises(WorkerError, match="the process that starts workers has ended"):
        supervise(tmp_path, {}, act=act, stop=StopConfig())
    assert len(pids) == 3
    assert all_gone(pids)


def test_a_worker_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Actor, "traits", replace(Actor.traits, grace_seconds=0.3))
    watcher = supervise(tmp_path, {"1.0": "never stops"})
    assert watcher.texts.count("actor-1 did not stop in time and was killed") == 1
    assert watcher.summary["stopped_by"] == "env_steps"
    assert all_gone(int(text.split()[2]) for text in watcher.texts if text.startswith("born"))


def test_another_role_is_watched_alike(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {"0.0": "exit"}, role=Learner, count=1)
    assert watcher.summary["restarts"] == {"learner": 1}
    assert watcher.summary["updates"] > 0


def test_workers_serve_in_leased_slots_with_seeds_of_their_lease(tmp_path: Path) -> None:
    seeds: dict[str, set[str]] = {}
    for lease in (0, 1, 2):
        folder = tmp_path / str(lease)
        folder.mkdir()
        watcher = supervise(folder, {}, leased={"indices": (3, 9), "generations": (lease, lease)})
        born = [text.split() for text in watcher.texts if text.startswith("born")]
        assert sorted(words[1] for words in born) == ["actor-3.0", "actor-9.0"]
        assert [worker.index for worker in watcher.statuses[-1].workers] == [3, 9]
        for words in born:
            seeds.setdefault(words[1], set()).add(words[3])
    assert all(len(found) == 3 for found in seeds.values())
    assert not set.intersection(*seeds.values())


def test_the_runs_own_agent_is_imported_before_the_first_worker() -> None:
    def modules(agent: str) -> tuple[str, ...]:
        return preloaded(replace(Config(), agent=replace(Config().agent, agent=agent)))

    assert set(modules("sac")) - set(PRELOAD) == {"apexrl.agents.sac"}
    assert set(modules("rainbow")) - set(PRELOAD) == {"apexrl.agents.dqn"}
    assert modules("mine:Agent") == PRELOAD


@pytest.mark.parametrize("word", [STOP, HURRY])
@pytest.mark.parametrize(
    ("name", "keeps", "save", "seconds"),
    [
        ("replay", False, True, worker_slots._REPLAY_SECONDS),
        ("learner", True, True, worker_slots._REPLAY_SECONDS),
        ("actor", False, True, None),
        ("replay", False, False, None),
    ],
)
def test_whoever_writes_the_replay_has_the_time_for_it(
    name: str, keeps: bool, save: bool, seconds: float | None, word: int
) -> None:
    """Of several learners none owns the replay: its own role does, and saves it after Ctrl-C too."""
    traits = RoleTraits(writes_replay=name == "replay", writes_checkpoints=keeps)
    slot: Any = SimpleNamespace(node=SimpleNamespace(name=name, traits=traits))
    grace = Slot.grace(slot, word == HURRY, save)
    assert grace == seconds if seconds else grace != worker_slots._REPLAY_SECONDS


def test_a_life_that_the_kernel_killed_for_lack_of_memory_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 0
    monkeypatch.setattr("apexrl.shared.available_memory.oom_kills", lambda: kills)

    def act(status: Any) -> None:
        nonlocal kills
        (worker,) = status.workers
        if worker.state == "acting" and worker.pid:
            kills += 1
            os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(WorkerError, match="the kernel killed it for lack of memory"):
        supervise(tmp_path, {}, count=1, restarts=2, act=act, stop=StopConfig(minutes=1.0))
