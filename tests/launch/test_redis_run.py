"""Runs over several hosts on one machine: the command itself, in processes of its own, around a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from recording_observer import small

from apexrl import __version__
from apexrl.config import Config, StopConfig, convert
from apexrl.config.placement import Redis
from apexrl.errors import ConfigError
from apexrl.launch import gateway_host
from apexrl.launch.actor_host import compare, local_config
from apexrl.launch.redis_run import Identity, make_record
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.members import HostLease
from apexrl.links.redis.run_listing import look
from apexrl.links.redis.run_record import LearnerLease, RunRecord, find_run
from apexrl.links.redis.server import Server
from apexrl.links.tcp.gateway_messages import Record
from apexrl.run.spec_json import spec_to_json
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, topology
from apexrl.topologies.host_cut import with_slots
from new_folders import new_folder
from redis_server import RedisServer

PROBE = Probe(EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2)), {"q": Field((2,), "float32")}, 64)
PASSWORD = "not/for#anybody"

OWN = """
import gymnasium
from apexrl.agents.dqn import DQN

def make():
    return gymnasium.make("CartPole-v1")

class Mine(DQN):
    pass
"""


def a_record(config: Config) -> RunRecord:
    config = with_slots(config)
    return make_record(config, Identity("r", "one-run-of-many", False), topology("apex")(config, PROBE), PROBE)


def test_a_host_works_with_the_runs_settings_and_ends_when_the_learner_does(tmp_path: Path) -> None:
    record = a_record(replace(small(tmp_path, seconds=3), stop=StopConfig(env_steps=5, minutes=1.0), seed=7))
    config = local_config(record, 3, "elsewhere", {"address": "here"}, "origin")
    assert config.stop == StopConfig()
    assert (config.seed, config.actor.actors, config.actor.actor_slots, config.out) == (7, 3, 64, "elsewhere")
    assert config.env.env_kwargs == {"seconds": 3, "address": "here"}
    assert config.name == f"r@{os.uname().nodename}"
    assert local_config(record, 0, ".", {}, "origin").actor.actors == 2


def test_more_actors_than_slots_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--actor-slots 64 is less than --actors 65"):
        local_config(a_record(small(tmp_path)), 65, ".", {}, "origin")


def of_environments(wanted: Config) -> Record:
    """What a run says whose hosts step environments alone."""
    return Record(
        run_id="one-run-of-many",
        name="r",
        apexrl="0.1.0",
        host="learner",
        config=convert.to_toml(wanted),
        spec={},
        splits=[wanted.actor.envs_per_actor],
        lease_seconds=10.0,
    )


@pytest.mark.parametrize("changes", [{"agent": "my_agents:Mine", "topology": "ga3c"}, {"topology": "my_wires:wire"}])
def test_a_host_of_environments_needs_neither_agent_nor_topology(changes: dict[str, Any], tmp_path: Path) -> None:
    wanted = convert.override(small(tmp_path), changes)
    record = of_environments(wanted)
    config = gateway_host.local_config(record, 1, ".", {}, "origin")
    assert (config.topology, config.agent.agent) == (wanted.topology, Config().agent.agent)


def test_a_run_that_listens_asks_no_host_for_more_workers_than_its_processors_allow(tmp_path: Path) -> None:
    wanted = convert.override(small(tmp_path), {"actors": 4000, "topology": "seed"})
    record = of_environments(wanted)
    with pytest.raises(ConfigError, match="origin wants 4000 actors of each host, more than the"):
        gateway_host.local_config(record, 0, ".", {}, "origin")
    assert gateway_host.local_config(record, 3, ".", {}, "origin").actor.actors == 3


@pytest.mark.parametrize(
    ("seen", "difference"),
    [
        (replace(PROBE, spec=replace(PROBE.spec, observation={"observation": Field((6,), "float32")})),
         r"environment\.observation\.observation\.shape: \[6\] here, \[4\] there"),
        (replace(PROBE, spec=replace(PROBE.spec, action=ActionSpec(n=3))), r"environment\.action\.n: 3 here, 2 there"),
        (replace(PROBE, step_spec={}), r"agent\.q is only there"),
        (replace(PROBE, step_spec={**PROBE.step_spec, "v": Field((), "float32")}), r"agent\.v is only here"),
        (replace(PROBE, weights_nbytes=65), "agent.weights: 65 bytes here, 64 there"),
    ],
)  # fmt: skip
def test_another_environment_or_agent_is_refused_by_host_and_difference(
    seen: Probe, difference: str, tmp_path: Path
) -> None:
    record = a_record(small(tmp_path))
    compare(record, PROBE, small(tmp_path))
    with pytest.raises(ConfigError, match=difference) as caught:
        compare(record, seen, small(tmp_path))
    assert f"on host {os.uname().nodename} CartPole-v1 is not what it is on the learner's host" in str(caught.value)
    assert f"here: apexrl {__version__}" in str(caught.value)


def test_bounds_may_differ_by_what_releases_round(tmp_path: Path) -> None:
    def bounded(most: float) -> Probe:
        bounds = {"low": np.full(2, -1.0, np.float32), "high": np.full(2, most, np.float32)}
        return replace(PROBE, spec=replace(PROBE.spec, action=ActionSpec(shape=(2,), dtype="float32", **bounds)))

    before = np.nextafter(np.float32(0.1), np.float32(0.0))
    record = msgspec.structs.replace(a_record(small(tmp_path)), spec=spec_to_json(bounded(0.1).spec))
    compare(record, bounded(float(before)), small(tmp_path))
    with pytest.raises(ConfigError, match=r"environment\.action\.high"):
        compare(record, bounded(0.1001), small(tmp_path))


def test_a_resumed_run_is_the_same_on_the_server(tmp_path: Path) -> None:
    folder = new_folder(small(tmp_path))
    first = Identity.of(folder.config(), Redis("redis://x", "cp", actors=False), None)
    first.write(folder)
    assert Identity.of(folder.config(), Redis("redis://x", actors=None), folder) == first
    renamed = Identity.of(folder.config(), Redis("redis://x", "other", actors=True), folder)
    assert renamed == Identity("other", first.run_id, True)
    assert Identity.of(folder.config(), Redis("redis://x"), None).run_id != first.run_id


def test_a_run_that_was_never_on_a_server_can_be_resumed_on_one(tmp_path: Path) -> None:
    folder = new_folder(small(tmp_path))
    identity = Identity.of(folder.config(), Redis("redis://x", actors=None), folder)
    assert (identity.name, identity.actors) == ("run", True)
    folder.hosts_path.write_text("[]")
    with pytest.raises(ConfigError, match=r"hosts\.json cannot be read"):
        Identity.of(folder.config(), Redis("redis://x"), folder)


def test_no_url_shows_where_things_are_shown() -> None:
    assert PASSWORD not in repr(Redis(f"redis://:{PASSWORD}@host"))


def test_an_environment_that_no_other_host_can_import_is_refused_at_once(tmp_path: Path) -> None:
    from apexrl import api

    with pytest.raises(ConfigError, match="has no importable name"):
        api.run(small(tmp_path, env=lambda: None), placement=Redis("redis://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="--serial"):
        api.run(replace(small(tmp_path), serial=True), placement=Redis("redis://127.0.0.1:1"))
    assert not (tmp_path / "run").exists()


class Command:
    """``apexrl …`` in a process of its own."""

    def __init__(self, folder: Path, words: tuple[str, ...], url: str) -> None:
        self.log = folder / f"{words[0]}-{len(list(folder.glob('*.out')))}.out"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "apexrl.cli", *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "APEXRL_REDIS_URL": url, "COLUMNS": "200"},
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def says(self, words: str, seconds: float = 240.0) -> None:
        """Wait until it says so."""
        deadline = time.monotonic() + seconds
        while words not in self.said:
            assert time.monotonic() < deadline, f"it never said {words!r}:\n{self.said}"
            assert self.process.poll() is None or words in self.said, f"it ended before it said {words!r}:\n{self.said}"
            time.sleep(0.05)

    def ends(self, seconds: float = 240.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end:\n{self.said}")

    def kill(self) -> None:
        """With everything: as when the machine loses power."""
        self.process.kill()
        self.process.wait()


Start = Callable[..., Command]


@pytest.fixture
def secret_server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", requirepass=PASSWORD) as server:
        yield server


@pytest.fixture
def url(secret_server: RedisServer) -> str:
    return f"redis://:{PASSWORD.replace('/', '%2F').replace('#', '%23')}@127.0.0.1:{secret_server.port}"


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    folder = tmp_path / "hosts"
    folder.mkdir()
    config = replace(small(tmp_path), name="", out="runs", stop=StopConfig())
    config = replace(config, hosts=replace(config.hosts, lease_seconds=5.0))
    (folder / "small.toml").write_text(convert.to_toml(config))
    own = convert.override(config, {"env": convert.LazyCallable("own_sim:make"), "agent": "own_sim:Mine"})
    (folder / "own.toml").write_text(convert.to_toml(own))
    (folder / "own_sim.py").write_text(OWN)
    with ExitStack() as stack:

        @contextmanager
        def running(words: tuple[str, ...]) -> Iterator[Command]:
            command = Command(folder, words, url)
            try:
                yield command
            finally:
                command.kill()

        yield lambda *words: stack.enter_context(running(words))
    for path in folder.rglob("*"):
        assert path.is_dir() or PASSWORD.encode() not in path.read_bytes()
        assert path.is_dir() or url.encode() not in path.read_bytes()


def summary(tmp_path: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "hosts" / "runs" / name / "summary.json").read_text())
    return found


HOST = f"r@{os.uname().nodename}"


@pytest.mark.long
@pytest.mark.slow
def test_a_learner_and_its_actors_on_one_machine(start: Start, tmp_path: Path) -> None:
    words = ("--run", "r", "--env-steps", "3000")
    both = start("train", "own.toml", "--trust", "own_sim", *words)  # what its user names is called at both ends
    assert both.ends() == 0, both.said
    learner, actors = summary(tmp_path, "r"), summary(tmp_path, HOST)
    assert learner["stopped_by"] == "env_steps"
    assert actors["stopped_by"] == "finished"
    assert actors["env_steps"] >= learner["env_steps"] >= 3000
    assert learner["hosts"]["committed"] > 0
    assert learner["hosts"]["missing"] == learner["hosts"]["repeated"] == learner["hosts"]["refused"] == 0
    assert learner["final_eval_episodes"] == 4
    assert learner["updates"] > 0
    assert "joined run r" in (tmp_path / "hosts" / "runs" / "r" / "logs" / "actor-host.log").read_text()
    refused = start("resume", "runs/r", "--run", "r")
    assert refused.ends() == 2
    assert "apexrl resume runs/r --trust own_sim" in refused.said


@pytest.mark.long
def test_actor_hosts_come_and_go(start: Start, url: str, tmp_path: Path) -> None:
    server = Server(url)
    early = start("actor", "--run", "r", "--actors", "2")
    early.says("waiting for run r at 127.0.0.1")
    learner = start("learner", "small.toml", "--run", "r")
    early.says("with the slots 0, 1")
    other = start("actor", "--run", "r", "--actors", "1", "--out", "others")
    second = start("learner", "small.toml", "--run", "r")
    other.says("with the slots 2")
    assert second.ends() == os.EX_TEMPFAIL
    assert f"run r at {server.address} has a learner: process {learner.process.pid}" in second.said
    learner.says("best evaluation so far")

    early.kill()
    record = find_run(server, "r", timeout=5.0)
    deadline = time.monotonic() + 240.0
    while True:  # the dead host's slots become free, and those of the living one do not
        place = HostLease.join(server, record, 1, ttl=1.0)
        slots = [slot.index for slot in place.slots]
        place.leave()
        if slots == [0]:
            break
        assert slots == [3]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    other.process.send_signal(signal.SIGINT)
    late = start("actor", "--run", "r", "--actors", "2")
    assert other.ends() == 130
    assert "handing over what there is" in other.said
    late.says("with the slots 0, 1")

    stop = start("stop", "--run", "r")
    assert learner.ends() == 0, learner.said
    assert late.ends() == 0, late.said
    assert stop.ends() == 0, stop.said
    assert summary(tmp_path, "r")["stopped_by"] == "stopped"
    assert summary(tmp_path, "r")["final_eval_episodes"] == 4


@pytest.mark.slow
def test_actors_wait_for_a_learner_that_was_killed_and_go_on_with_its_successor(
    start: Start, url: str, tmp_path: Path
) -> None:
    (tmp_path / "hosts" / "token").write_text("a token that both have")
    signed = ("--token-file", "token")  # what the learner's user names is called on the actor's host
    learner = start("learner", "own.toml", "--run", "r", "--trust", "own_sim", *signed)
    actor = start("actor", "--run", "r", *signed)
    learner.says("training")
    learner.kill()
    actor.says("the learner of run r is away: waiting for it")  # its lease has run out: another may take its place
    resumed = start("resume", "runs/r", "--run", "r", "--trust", "own_sim", *signed)
    actor.says("the learner of run r is back")
    with closing(Connection(Server(url))) as connection:
        made = sum(member.digest.env_steps for member in look(connection, "r").alive)
        deadline = time.monotonic() + 240.0
        while look(connection, "r").digest.env_steps < made + 500:
            assert time.monotonic() < deadline, resumed.said
            time.sleep(0.05)
    resumed.process.send_signal(signal.SIGINT)
    assert resumed.ends() == 130, resumed.said
    assert actor.ends() == 0, actor.said
    # no step is counted twice: neither by the dead learner's checkpoint and its successor, nor because it came again
    assert made + 500 <= summary(tmp_path, "r")["env_steps"] <= summary(tmp_path, HOST)["env_steps"]
    assert actor.said.count("joined run r") == 1
    assert not (tmp_path / "hosts" / "runs" / f"{HOST}-2").exists()


def test_a_run_whose_actors_cannot_make_the_environment_says_where(start: Start, url: str, tmp_path: Path) -> None:
    place = LearnerLease.take(Server(url), a_record(small(tmp_path)), 10.0)
    wrong = start("actor", "--run", "r", "--env-kwargs", "gravity_of", "moon")
    assert wrong.ends() == 2, wrong.said
    assert f"on host {os.uname().nodename}: environment CartPole-v1 cannot be made with" in wrong.said
    place.leave()


def test_ctrl_c_ends_an_actor_host_that_waits_for_its_run(start: Start) -> None:
    waiting = start("actor", "--run", "nobodys")
    waiting.says("waiting for run nobodys")
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.ends() == 130, waiting.said
    assert "Traceback" not in waiting.said
    assert not (waiting.log.parent / "runs").exists()
