"""SEED, GA3C and A3C over hosts: the real commands around a relay; workers, hosts and learners die, links are cut."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from host_rig import Command, descendants, free_port, wait_for
from tcp_relay import Relay

from apexrl.run.metrics import read_rows

TOKEN = "a-token-that-nobody-may-print"
SETTINGS = {
    "hidden": 16,
    "min-size": 200,
    "envs-per-actor": 4,
    "actor-slots": 3,
    "lease-seconds": 3,
    "eval-episodes": 2,
    "eval-envs": 2,
    "eval-period-seconds": 5,
    "checkpoint-seconds": 0.5,
    "updates-per-second": 200,  # so that the run lasts for what shall happen to it
    "stop-at-return": None,
}
OF_REPLAY = ("min-size", "updates-per-second")


class Hosts:
    """A learner's host, and others that reach it through a relay."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.port = free_port()
        self.link = stack.enter_context(Relay(("127.0.0.1", self.port), ("127.0.0.1", free_port())))
        self._started = 0

    def learner(self, *flags: str, topology: str = "seed") -> Command:
        settings = [(name, value) for name, value in SETTINGS.items() if topology == "seed" or name not in OF_REPLAY]
        given = [word for name, value in settings for word in (f"--{name}", str(value))]
        words = ["train", "cartpole", "--topology", topology, "--name", "run", *given, *flags]
        return self.command(*words, "--listen", f"127.0.0.1:{self.port}", "--out", str(self.folder / "runs"))

    def resumed(self, *flags: str) -> Command:
        return self.command("resume", str(self.run_folder), "--listen", f"127.0.0.1:{self.port}", *flags)

    def envs(self, *flags: str, **env: str) -> Command:
        out = str(self.folder / f"envs-{self._started}")
        return self.command("envs", "--connect", f"127.0.0.1:{self.link.address[1]}", "--out", out, *flags, **env)

    def command(self, *words: str, **env: str) -> Command:
        self._started += 1
        log = self.folder / f"{self._started}-{words[0]}.log"
        env = {**os.environ, "APEXRL_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", **env}
        command = Command([sys.executable, "-m", "apexrl.cli", *words], log, env, self.folder)
        self._stack.callback(command.close)
        return command

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / "run"

    def steps(self) -> int:
        """That the learner has logged."""
        try:
            rows = read_rows(self.run_folder / "metrics.jsonl")
        except FileNotFoundError:
            return 0
        return max((int(row["env_steps"]) for row in rows if row.get("env_steps")), default=0)

    def goes_on(self, steps: int = 400) -> None:
        """Wait until so many more environment steps have been made."""
        begun = self.steps()
        wait_for(f"{steps} more steps than {begun}", lambda: self.steps() > begun + steps)

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_folder / "summary.json").read_text(encoding="utf-8"))
        return found


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(tmp_path, stack)


def workers_of(command: Command) -> list[int]:
    """Processes that a host's fork server has started."""
    return [pid for pid in descendants(command.pid) if pid not in children(command.pid)]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.long
def test_hosts_bring_all_environments_and_what_breaks_is_mended(hosts: Hosts) -> None:
    first = hosts.envs("--actors", "1")  # before the learner
    first.says("waiting for a run at")
    learner = hosts.learner("--actors", "0", "--env-steps", "1000000")
    first.says("joined run run at")
    hosts.goes_on()

    os.kill(workers_of(first)[-1], signal.SIGKILL)
    first.says("starting it again")
    learner.says("starting it again")  # its host has told
    hosts.goes_on()

    hosts.link.cut()
    first.says("is away: waiting for it")
    hosts.link.restore()
    first.says("is back")
    hosts.goes_on()

    second = hosts.envs("--actors", "2")
    learner.says("has joined with slots 1, 2")
    second.kill()
    third = hosts.envs("--actors", "2")  # when the lease of the dead one has run out
    learner.says("is away")
    third.says("joined run run at")
    hosts.goes_on()

    learner.interrupt()
    assert learner.finish() == 130, learner.said
    assert [host.finish() for host in (first, third)] == [0, 0]
    summary = hosts.summary()
    assert summary["updates"] > 20
    assert summary["episodes"] > 20
    assert summary["restarts"]["env_worker"] >= 1
    assert summary["restarts"]["gateway"] == summary["restarts"]["inference_server"] == 0
    assert summary["hosts"]["env_steps"] == summary["env_steps"]
    # the first host's worker, its next generation, and that one after the cut; others may have come too late to ask
    assert summary["hosts"]["worker_connections"] >= 3
    assert TOKEN not in "".join(
        path.read_text(errors="replace") for path in hosts.folder.rglob("*.*") if path.is_file()
    )


@pytest.mark.long
def test_a_learner_that_was_killed_and_resumed_finds_its_workers_again(hosts: Hosts) -> None:
    learner = hosts.learner("--actors", "1", "--env-steps", "1000000")
    host = hosts.envs("--actors", "1")
    learner.says("has joined with slots 1")
    hosts.goes_on(800)
    gateway = next(pid for pid in descendants(learner.pid) if listens(pid, hosts.port))
    os.kill(gateway, signal.SIGKILL)
    learner.says("is back with slots 1")
    hosts.goes_on()

    learner.kill()
    host.says("is away: waiting for it")
    resumed = hosts.resumed("--env-steps", "1000000")
    resumed.says("is back with slots 1")
    hosts.goes_on(6000)
    resumed.interrupt()
    assert resumed.finish() == 130, resumed.said
    assert host.finish() == 0, host.said
    summary = hosts.summary()
    assert summary["hosts"]["env_steps"] > 0
    assert summary["hosts"]["hosts"] == 0
    assert host.running is False


@pytest.mark.long
def test_one_model_of_ga3c_serves_other_hosts_too(hosts: Hosts) -> None:
    host = hosts.envs("--actors", "1")
    learner = hosts.learner("--actors", "0", "--env-steps", "4000", topology="ga3c")
    assert learner.finish() == 0, learner.said
    assert host.finish() == 0, host.said
    summary = hosts.summary()
    assert summary["updates"] > 0
    assert summary["hosts"]["env_steps"] == summary["env_steps"] >= 4000
    assert summary["restarts"]["gateway"] == summary["restarts"]["model_server"] == 0


@pytest.mark.long
def test_workers_of_a3c_on_other_hosts_survive_what_is_killed(hosts: Hosts) -> None:
    host = hosts.envs("--actors", "2")
    learner = hosts.learner("--no-hogwild", "--actors", "0", "--env-steps", "1000000", topology="a3c")
    learner.says("has joined with slots 0, 1")
    hosts.goes_on()
    relay = named(host, "apexrl-relay-0")
    os.kill(relay, signal.SIGKILL)
    host.says("relay-0: was killed by signal 9; starting it again")
    hosts.goes_on()
    os.kill(named(host, "apexrl-worker-1"), signal.SIGKILL)
    host.says("worker-1: was killed by signal 9; starting it again")
    hosts.goes_on()
    os.kill(named(learner, "apexrl-gateway-"), signal.SIGKILL)
    learner.says("is back with slots 0, 1")
    hosts.goes_on()
    os.kill(named(learner, "apexrl-paramete"), signal.SIGKILL)
    hosts.goes_on()
    hosts.link.cut()
    host.says("is away: waiting for it")
    hosts.link.restore()
    host.says("is back")
    hosts.goes_on()
    learner.kill()
    resumed = hosts.resumed("--env-steps", "1000000")
    resumed.says("is back with slots 0, 1")
    hosts.goes_on(2000)
    resumed.interrupt()
    assert resumed.finish() == 130, resumed.said
    assert host.finish() == 0, host.said
    summary = hosts.summary()
    assert summary["updates"] > 100
    assert summary["hosts"]["env_steps"] > 0
    assert summary["hosts"]["lost_gradients"] == summary["dropped"]["lost_gradients"] >= 0
    assert summary["policy_lag"]["mean"] > 0.0  # as workers there have told


def named(command: Command, name: str) -> int:
    """The process of a worker, by what ``ps`` shows of it."""
    return next(pid for pid in descendants(command.pid) if Path(f"/proc/{pid}/comm").read_text().strip() == name[:15])


@pytest.mark.long
def test_who_cannot_take_part_ends_with_an_error_that_says_why(hosts: Hosts) -> None:
    learner = hosts.learner("--actors", "1", "--env", "apexrl.envs.toy:PositionCartPole-v0")
    learner.says("other hosts may bring 2 environment workers")
    stranger = hosts.envs(APEXRL_TOKEN="another-token-than-that")
    many = hosts.envs("--actors", "3")
    other = hosts.envs("--actors", "1", "--env-kwargs", "no_such_argument", "1")
    assert stranger.finish() == 1
    assert "does not know the run's token" in stranger.said
    assert many.finish() == 1
    assert "2 slots for workers of other hosts and 2 free, 3 wanted" in many.said
    assert other.finish() == 2
    assert "on host" in other.said
    assert "no_such_argument" in other.said
    learner.interrupt()
    assert learner.finish() == 130


def listens(pid: int, port: int) -> bool:
    """Whether this process has the listening socket."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {fields[9] for line in lines if (fields := line.split())[3] == "0A" and int(fields[1][-4:], 16) == port}
    try:
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(f"socket:[{inode}]" in links for inode in inodes)
