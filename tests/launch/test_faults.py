"""Faults in whole runs (DESIGN §9): real processes, real environments, small networks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from recording_observer import Watcher, all_gone, small, with_actors, with_learner

from apexrl.config import EnvConfig, StopConfig
from apexrl.errors import EnvError, WorkerError
from apexrl.launch import check, first_steps, launch, local_run
from apexrl.run.callback_observer import CallbackObserver
from apexrl.run.status import RunStatus

FAULTY = "apexrl.envs.faulty"


def pids_of(status: RunStatus, role: str) -> list[int]:
    return [worker.pid for worker in status.workers if worker.role == role and worker.pid]


def goes_on(status: RunStatus) -> bool:
    """Whether an actor was started again and acts; as a callback's answer, this ends the run."""
    return any(worker.restarts and worker.state == "acting" for worker in status.workers if worker.role == "actor")


def test_a_run_leaves_a_complete_folder_and_nobody_alive(tmp_path: Path) -> None:
    watcher = Watcher()
    summary = launch(small(tmp_path), [watcher])
    folder = tmp_path / "run"
    assert summary == watcher.summary
    assert summary["stopped_by"] == "env_steps"
    assert summary["env_steps"] >= 1500
    assert summary["updates"] > 100
    assert summary["samples_per_insert"] == pytest.approx(4.0, rel=0.35)
    assert summary["restarts"] == {"actor": 0, "learner": 0, "evaluator": 0}
    assert summary["final_eval_episodes"] == 4
    assert summary["final_eval_return"] > 0
    assert 0 <= summary["policy_lag"]["mean"] <= summary["policy_lag"]["max"] < summary["updates"]
    assert list((folder / "checkpoints").glob(f"generation-*-update-{summary['updates']:09d}.safetensors"))
    assert (folder / "checkpoints" / "best.safetensors").exists()
    assert json.loads((folder / "summary.json").read_text())["updates"] == summary["updates"]
    assert all_gone(worker.pid for status in watcher.statuses for worker in status.workers if worker.pid)


def test_a_killed_actor_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    killed: list[int] = []

    def act(status: RunStatus) -> bool:
        if not killed and status.updates > 20 and (pids := pids_of(status, "actor")):
            killed.append(pids[0])
            os.kill(killed[0], signal.SIGKILL)
        return goes_on(status)

    summary = launch(small(tmp_path, stop=StopConfig(minutes=5.0)), [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"]["actor"] == 1
    assert any("was killed by signal 9; starting it again" in text for text in watcher.texts)
    assert len({pid for status in watcher.statuses for pid in pids_of(status, "actor")}) == 3


def test_a_killed_learner_goes_on_and_versions_never_go_back(tmp_path: Path) -> None:
    killed: list[int] = []
    updates_then: list[int] = []

    def act(status: RunStatus) -> bool:
        if len(killed) < 2 and status.updates > 100 * (1 + len(killed)) and status.replay_size > 200:
            pids = [pid for pid in pids_of(status, "learner") if pid not in killed]
            if pids:
                killed.append(pids[0])
                updates_then.append(status.updates)
                os.kill(pids[0], signal.SIGKILL)
        back = len(killed) == 2 and status.restarts["learner"] == 2
        return back and status.updates > updates_then[-1] + 50

    config = small(tmp_path, stop=StopConfig(minutes=5.0))
    summary = launch(config, [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"]["learner"] == 2
    assert summary["updates"] > updates_then[-1] + 50
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)
    sizes = [status.replay_size for status in watcher.statuses if status.replay_size]
    assert all(after > before - 500 for before, after in pairwise(sizes))  # the replay survived its owner
    assert any("restored generation-" in text or "took up the published weights" in text for text in watcher.texts)


def test_processes_that_were_stopped_are_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    stopped: list[int] = []
    updates_then: list[int] = []

    def act(status: RunStatus) -> bool:
        first = [pids_of(status, role)[:1] for role in ("actor", "learner", "evaluator")]
        if not stopped and status.updates > 100 and all(first):
            stopped.extend(pid for (pid,) in first)
            updates_then.append(status.updates)
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        back = bool(stopped) and all(status.restarts[role] >= 1 for role in ("actor", "learner", "evaluator"))
        return back and status.updates > updates_then[0] + 50

    config = replace(with_actors(small(tmp_path, stop=StopConfig(minutes=5.0)), env_timeout=10.0), stall_timeout=10.0)
    summary = launch(config, [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert any(
        "learner-0: it stood still for 10 s (--stall-timeout): its process is stopped" in t for t in watcher.texts
    )
    assert all_gone(stopped)


def test_a_hanging_environment_is_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    def act(status: RunStatus) -> bool:
        restarted = [worker for worker in status.workers if worker.restarts]
        return bool(restarted) and restarted[0].state in ("acting", "evaluating") and status.updates > 100

    config = small(tmp_path, env=f"{FAULTY}:Hangs-v0", at_step=60, once=str(tmp_path / "hung"), stop=StopConfig())
    config = with_learner(config, updates_per_second=50.0)  # the others wait for the one that hangs
    summary = launch(with_actors(config, env_timeout=6.0), [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["dropped"]["hung_env_calls"] == 1
    assert summary["restarts"]["actor"] + summary["restarts"]["evaluator"] == 1
    assert any("took longer than 6 s (--env-timeout)" in text for text in watcher.texts)


def test_an_environment_that_raises_once_is_survived(tmp_path: Path) -> None:
    config = small(tmp_path, env=f"{FAULTY}:Raises-v0", at_step=60, once=str(tmp_path / "raised"))
    summary = launch(config, [watcher := Watcher()])
    assert summary["stopped_by"] == "env_steps"
    assert any("the simulator broke at step 60" in text for text in watcher.texts)


def test_environments_that_always_raise_end_the_run_quickly_with_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_run, "try_first_steps", lambda *_: None)
    # at the first step: a generation that got some work done would not count as one in vain
    config = small(tmp_path, env=f"{FAULTY}:Raises-v0", at_step=1)
    with pytest.raises(WorkerError) as caught:
        launch(config, [watcher := Watcher()])
    text = str(caught.value)
    assert "RuntimeError: the simulator broke at step 1" in text
    assert "faulty.py" in text
    assert "actor-" in text or "evaluator-" in text
    assert watcher.summary["stopped_by"] == "error"


def test_an_environment_that_cannot_be_made_is_said_at_once_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="no licence"):
        launch(small(tmp_path, env=f"{FAULTY}:RaisesOnMake-v0"))
    assert not (tmp_path / "run").exists()


def test_an_environment_whose_first_steps_always_fail_is_said_at_once_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_steps, "_MOST_SECONDS", 120.0)
    config = small(tmp_path, env=f"{FAULTY}:Raises-v0", at_step=2)
    broke = r"(?s)step\(\) of environment 0 raised RuntimeError: the simulator broke at step 2\n.*faulty\.py"
    with pytest.raises(EnvError, match=broke):
        launch(config)
    with pytest.raises(EnvError, match=r"the first steps of the environment ended its process \(killed by signal 9\)"):
        check(replace(config, env=EnvConfig(env=Kills)))
    with pytest.raises(EnvError, match=r"(?s)first steps of .*Confuses failed\n.*test_faults\.py.*ZeroDivisionError"):
        check(replace(config, env=EnvConfig(env=Confuses)))
    assert not (tmp_path / "run").exists()


class Confuses(CartPoleEnv):
    def step(self, action: Any) -> Any:
        observation, reward, ended, cut, info = super().step(action)
        return observation, Undivided(reward), ended, cut, info


class Undivided:
    def __init__(self, reward: Any) -> None:
        self.reward = reward

    def __float__(self) -> float:
        return 1.0 / 0.0


class Kills(CartPoleEnv):
    def step(self, action: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_first_steps_that_fail_once_hang_or_wait_for_a_callback_are_left_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = tmp_path / "raised"
    monkeypatch.setattr(first_steps, "_MOST_SECONDS", 120.0)
    check(small(tmp_path, env=f"{FAULTY}:Raises-v0", at_step=2, once=str(once)))
    assert once.exists()
    monkeypatch.setattr(first_steps, "_MOST_SECONDS", 0.5)
    check(small(tmp_path, env=f"{FAULTY}:Hangs-v0", at_step=2))
    asked: Any = None  # nobody is asked
    first_steps.try_first_steps(asked, small(tmp_path), [CallbackObserver(lambda status: None)])


def test_an_unknown_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="CartPol-v1"):
        launch(small(tmp_path, env="CartPol-v1"))


def test_simulators_die_with_their_actor(tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    killed: list[int] = []
    before: list[str] = []

    def act(status: RunStatus) -> bool:
        made = all(worker.state not in ("starting", "restarting") for worker in status.workers)
        actors = pids_of(status, "actor")  # they may act before their pids are told
        if not killed and made and actors and status.updates > 20:
            before.extend(pid_file.read_text().split())
            killed.append(actors[0])
            os.kill(killed[0], signal.SIGKILL)
        return goes_on(status)

    config = small(tmp_path, env=f"{FAULTY}:SpawnsChild-v0", pid_file=str(pid_file), stop=StopConfig(minutes=5.0))
    summary = launch(config, [Watcher(act)])
    assert summary["restarts"]["actor"] == 1
    after = pid_file.read_text().split()
    assert len(after) == len(before) + 4  # the new actor's simulators
    assert all_gone(int(pid) for pid in after)


def test_an_environment_callable_needs_no_importable_name(tmp_path: Path) -> None:
    import gymnasium

    limit = 11
    config = replace(small(tmp_path), stop=StopConfig(env_steps=500))
    made = EnvConfig(env=lambda: gymnasium.make("CartPole-v1", max_episode_steps=limit))
    launch(replace(config, env=made), [watcher := Watcher()])
    assert max(max(values["lengths"]) for values in watcher.said("episodes")) == limit


def test_a_run_resumes_with_counters_weights_and_replay(tmp_path: Path) -> None:
    config = small(tmp_path, stop=StopConfig(env_steps=1000))
    config = with_learner(config, save_replay=True)
    first = launch(config)
    # So many that they are not told of all at once: time counts from the look before the first that is.
    more = replace(config, stop=StopConfig(env_steps=first["env_steps"] + 5000))
    second = launch(more, [watcher := Watcher()], resume=tmp_path / "run")
    assert second["env_steps"] >= first["env_steps"] + 5000
    assert second["updates"] > first["updates"]
    assert second["episodes"] > first["episodes"]
    assert second["wall_seconds"] > first["wall_seconds"]
    assert watcher.statuses[0].replay_size > 750
    assert any("restored" in text and f"update-{first['updates']:09d}" in text for text in watcher.texts)
    assert min(status.weights_version for status in watcher.statuses if status.weights_version) > first["updates"]


SCRIPT = """
import sys
from recording_observer import Watcher, small
from apexrl.config import StopConfig
from apexrl.launch import launch
from pathlib import Path

def act(status):
    if status.updates > 20 and not Path(sys.argv[2]).exists():
        pids = [worker.pid for worker in status.workers if worker.pid]
        Path(sys.argv[2] + ".part").write_text(" ".join(map(str, pids)))
        Path(sys.argv[2] + ".part").rename(sys.argv[2])

if __name__ == "__main__":
    config = small(Path(sys.argv[1]), env="apexrl.envs.faulty:SpawnsChild-v0", pid_file=sys.argv[3], stop=StopConfig())
    launch(config, [Watcher(act)])
"""


def start_run(tmp_path: Path) -> tuple[subprocess.Popen[bytes], list[int], list[int]]:
    """A run in a process of its own, once it trains: (supervisor, workers' pids, simulators' pids)."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    workers, simulators = tmp_path / "workers", tmp_path / "simulators"
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(Path(__file__).parent), str(root / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), str(workers), str(simulators)],
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    deadline = time.monotonic() + 300.0
    while not workers.exists():
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < deadline, "the run did not get to training"
        time.sleep(0.05)
    return process, [int(p) for p in workers.read_text().split()], [int(p) for p in simulators.read_text().split()]


def shared() -> set[str]:
    """What lies in shared memory by a name. Other processes' names may come and go."""
    shm = Path("/dev/shm")
    return {path.name for path in shm.iterdir()} if shm.exists() else set()


def test_killing_the_supervisor_leaves_no_process_and_no_shared_memory(tmp_path: Path) -> None:
    before = shared()
    process, workers, simulators = start_run(tmp_path)
    servers = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in workers}
    process.kill()
    process.wait()
    assert all_gone([*workers, *simulators, *servers])
    deadline = time.monotonic() + 30.0
    while (left := shared() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def test_ctrl_c_ends_with_checkpoint_and_summary(tmp_path: Path) -> None:
    process, workers, simulators = start_run(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=90.0) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped_by"] == "interrupted"
    assert (summary["final_eval_return"], summary["final_eval_episodes"]) == (None, 0)  # which would take its time
    assert list((tmp_path / "run" / "checkpoints").glob(f"generation-*-update-*{summary['updates']}.safetensors"))
    assert all_gone([*workers, *simulators])
