"""A learner that its server cannot hear: it stops writing checkpoints in time, and for ever if it is replaced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcp_relay import Relay

from apexrl.config import (
    ActorConfig,
    AgentConfig,
    Config,
    EnvConfig,
    EvaluatorConfig,
    HostsConfig,
    LearnerConfig,
    ReplayConfig,
    StopConfig,
    convert,
)
from apexrl.errors import LinkError, OwnershipError
from apexrl.launch.beacon import Beacon
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.redis.checked_values import RunRecord
from apexrl.links.redis.run_record import LearnerLease
from apexrl.links.redis.server import Server
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.ownership import Fence, lease_clock
from apexrl.run.status import RunStatus
from redis_server import RedisServer

TTL = 3.0
STATE = {"w": np.zeros(3, np.float32)}


def record(run_id: str = "one-run-of-many") -> RunRecord:
    return RunRecord(
        run_id=run_id, name="r", apexrl="0", config="", spec={}, step_spec={}, schema="00", weights_nbytes=1,
        actor_slots=4, host="h", began=0.0, local={},
    )  # fmt: skip


def wait_for(what: Callable[[], Any], seconds: float = 240.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
    return found


@pytest.fixture
def link(redis_server: RedisServer) -> Iterator[Relay]:
    with Relay((redis_server.address, redis_server.port)) as relay:
        yield relay


class Learner:
    """A learner's beacon over the link, and its fence."""

    def __init__(self, link: Relay, folder: Path, stack: ExitStack) -> None:
        place = LearnerLease.take(Server(f"redis://127.0.0.1:{link.address[1]}"), record(), TTL)
        self.board = ControlBoard(1)
        self.told: list[str] = []
        self.beacon = stack.enter_context(
            closing(Beacon(place, replace(Config(), hosts=HostsConfig(learner_lease_seconds=TTL))))
        )
        self.beacon.announce(lambda text, level: self.told.append(text))
        self.beacon.guard(self.board)
        self.fence = Fence(folder, "learner-0", 1, lambda: self.board.held_until)
        self._folder = folder

    def says(self, words: str) -> bool:
        self.beacon.update(RunStatus())
        return any(words in text for text in self.told)

    def save(self, updates: int) -> Path:
        return checkpoint.save(self._folder, STATE, {"updates": updates}, fence=self.fence)


@pytest.mark.parametrize("how", ["cut", "blackhole"])
def test_a_learner_that_is_cut_off_pauses_until_the_server_answers(how: str, link: Relay, tmp_path: Path) -> None:
    with ExitStack() as stack:
        learner = Learner(link, tmp_path, stack)
        learner.save(1)
        getattr(link, how)()
        gone = lease_clock()
        wait_for(lambda: learner.fence.paused)  # by itself, though the beacon may be waiting for an answer
        assert lease_clock() - gone <= TTL + 30.0
        assert learner.board.held_until <= gone + TTL  # counted from when the server was asked last, and answered
        with pytest.raises(LinkError, match="has not answered"):
            learner.save(2)
        wait_for(lambda: learner.says("no checkpoints are written until the server answers"))
        link.restore()
        wait_for(lambda: learner.says("checkpoints are written again"))
        learner.save(3)
        assert [path.stem.split("-", 2)[2] for path in checkpoint.numbered(tmp_path)] == [
            "update-000000001",
            "update-000000003",
        ]


def test_a_learner_that_was_replaced_while_it_was_cut_off_writes_nothing(
    link: Relay, redis_server: RedisServer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        learner = Learner(link, tmp_path, stack)
        link.cut()

        def successor() -> LearnerLease | None:
            try:
                return LearnerLease.take(redis_server.server(), record(), 60.0)
            except OwnershipError:
                return None

        place = wait_for(successor)
        assert learner.fence.paused  # before anybody could take its place
        link.restore()
        wait_for(lambda: learner.beacon.update(RunStatus()) == "replaced")
        with pytest.raises(LinkError, match="another learner has this run's lease"):
            learner.save(2)
        assert not learner.fence.paused
        with pytest.raises(OwnershipError, match="has another learner now"):
            learner.beacon.check()
        assert checkpoint.numbered(tmp_path) == []
        place.leave()


def command(folder: Path, url: str, *words: str) -> subprocess.Popen[bytes]:
    with (folder / f"{words[0]}.out").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "apexrl.cli", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "APEXRL_REDIS_URL": url},
            start_new_session=True,
        )


@pytest.mark.long
def test_of_two_learners_with_folders_of_their_own_the_cut_off_one_stops(
    link: Relay, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The successor goes on from a copy of the folder, so nothing in the first one's folder tells of it."""
    config = Config(
        out="runs",
        env=EnvConfig(env="CartPole-v1"),
        agent=AgentConfig(hidden=(16,)),
        replay=ReplayConfig(capacity=5000, min_size=100, updates_per_step=0.0),  # it learns without new steps, too
        actor=ActorConfig(actors=1),
        learner=LearnerConfig(batch_size=16, checkpoint_seconds=0.3, updates_per_second=200.0),
        evaluator=EvaluatorConfig(eval_episodes=2, eval_envs=2, eval_period_seconds=0.5),
        hosts=HostsConfig(learner_lease_seconds=TTL),
        stop=StopConfig(),
    )
    (tmp_path / "given.toml").write_text(convert.to_toml(config))
    first, copy = tmp_path / "runs" / "r", tmp_path / "copies" / "r"
    near, far = redis_server.url, f"redis://127.0.0.1:{link.address[1]}/0"
    started: list[subprocess.Popen[bytes]] = []
    try:
        learner = command(tmp_path, far, "learner", "given.toml", "--run", "r")
        started += [learner, command(tmp_path, near, "actor", "--run", "r", "--out", "elsewhere")]
        wait_for(lambda: checkpoint.latest(first / "checkpoints"))
        link.cut()
        said = tmp_path / "learner.out"
        wait_for(lambda: "no checkpoints are written until the server answers" in said.read_text())
        time.sleep(0.5)  # for a file that was being put in place
        before = {path: path.read_bytes() for path in (first / "checkpoints").iterdir()}
        shutil.copytree(first, copy, ignore=shutil.ignore_patterns("lock"))
        successor = command(tmp_path, near, "resume", str(copy), "--run", "r")
        started.append(successor)
        newest = checkpoint.latest(copy / "checkpoints")
        wait_for(lambda: checkpoint.latest(copy / "checkpoints") != newest)
        assert learner.poll() is None  # it still learns
        link.restore()
        assert learner.wait(240.0) == 1
        assert "has another learner now" in said.read_text()
        assert {path: path.read_bytes() for path in (first / "checkpoints").iterdir()} == before
        successor.send_signal(signal.SIGINT)
        assert successor.wait(240.0) == 130
        assert RunFolder.open(copy).summary()["stopped_by"] == "interrupted"
    finally:
        for process in started:
            process.kill()
            process.wait()
