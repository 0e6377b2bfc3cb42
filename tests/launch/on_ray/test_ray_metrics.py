"""A run on Ray as others see it: its record on the cluster, `apexrl status`, and its figures among Ray's metrics."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from rich.console import Console
from short_runs import program

from apexrl.cli import main, ray_status
from apexrl.config import ActorConfig, Config, StopConfig
from apexrl.config.placement import Ray
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.ray import ray_metrics
from apexrl.launch.ray.driver import Driver
from apexrl.launch.ray.group_plan import plan
from apexrl.launch.ray.ray_metrics import GroupRecord, Meters, RayMetrics, Record
from apexrl.launch.resumed_from import Base
from apexrl.launch.run_ledger import Ledger
from apexrl.run.folder import RunFolder
from apexrl.run.metrics import RunLog
from apexrl.run.status import PolicyLag, RunStatus, WorkerStatus
from new_folders import new_folder

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


class Watcher:
    """Asks ``done`` a few times a second."""

    def __init__(self, done: Callable[[RunStatus], bool]) -> None:
        self._done = done

    def started(self, config: Config, folder: Path) -> None: ...

    def update(self, status: RunStatus) -> bool:
        return self._done(status)

    def event(self, kind: str, values: dict[str, Any]) -> None: ...

    def message(self, text: str, level: str = "info") -> None: ...

    def finished(self, summary: dict[str, Any]) -> None: ...


def run(address: str, out: Path, done: Callable[[RunStatus], bool]) -> RunFolder:
    """Two actors in two groups, until ``done`` says so, or for eight minutes."""
    config = Config(name="seen", out=str(out), actor=ActorConfig(actors=2), stop=StopConfig(minutes=8.0))
    placement = Ray(address=address, actor_cpus=0.5, shard_cpus=0.5, replay_shards=2)
    folder = new_folder(config)
    with Interrupts() as interrupts, closing(Driver(config, placement, interrupts)) as driver:
        ledger = Ledger(config, folder, [RunLog(folder.path), Watcher(done)], Base(), time.monotonic())
        ledger.open()
        driver.settle(plan(config, placement, 2))
        with closing(RayMetrics(driver.namespace, folder)) as told:
            told.write()
            driver.run(program(config, {}), ledger, told)
        assert ray.is_initialized()
        ended = time.monotonic() + 60.0
        while any(record.name == "seen" for record in ray_metrics.records(5.0)[0].values()):
            assert time.monotonic() < ended, "the record outlived its run"
            time.sleep(0.2)
    ledger.close()
    return folder


def learning(record: Record | None) -> bool:
    """Whether a record says that every part of the run is at work."""
    if record is None or not record.status.updates or not record.status.weights_version:
        return False
    shards = record.groups[1:]
    return all(s.size and s.inserted_per_second and s.sampled_per_second for s in shards)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "apexrl.cli", *words], capture_output=True, text=True, timeout=240, check=False
    )


def metrics_text() -> str:
    """What Prometheus would read, of every node."""
    pages = []
    for node in (node for node in ray.nodes() if node["Alive"]):
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            pages.append(answer.read().decode())
    return "\n".join(pages)


@pytest.mark.cluster
def test_a_run_is_seen_by_others_while_it_lives(cluster: str, tmp_path: Path) -> None:
    """The cluster tells it, and its folder knows the cluster."""
    seen: list[Record] = []
    said: list[subprocess.CompletedProcess[str]] = []
    path = tmp_path / "seen"

    def done(status: RunStatus) -> bool:
        if seen:  # it is asked again while the run ends
            return True
        found = [record for record in ray_metrics.records(5.0)[0].values() if record.name == "seen"]
        if not found or not learning(found[0]):
            return False
        seen.extend(found)
        for words in (
            ["--ray", cluster],
            ["--ray", cluster, "--run", "seen"],
            [str(path)],
            ["--ray", cluster, "--run", "x"],
        ):
            said.append(command("status", *words))
        return True

    folder = run(cluster, tmp_path, done)
    (record,) = seen
    hosts = {group.host for group in record.groups}
    assert "" not in hosts
    assert [group.name for group in record.groups] == ["home", "shard-0", "shard-1"]
    assert [group.workers for group in record.groups] == [("learner-0",), ("actor-0",), ("actor-1",)]
    assert all(group.state == "up" and group.capacity == 2000 for group in record.groups[1:])
    assert record.folder == str(folder.path.resolve())

    every, one, by_folder, nobody = said
    assert [ended.returncode for ended in said] == [0, 0, 0, 1], [ended.stderr for ended in said]
    assert [line.split()[0] for line in every.stdout.splitlines()] == ["run", "seen"]
    for text in (one.stdout, by_folder.stdout):
        for word in ("seen", "home", "shard-0", "shard-1", "actor-0", "actor-1", "learner-0", record.host[:15]):
            assert word in text, (word, text)
    assert "there is no run x on the Ray cluster" in nobody.stdout
    assert "runs there: seen" in nobody.stdout

    known = json.loads(folder.ray_path.read_text())
    assert known["address"] == cluster
    after = command("status", str(folder.path))
    assert after.returncode == 0, after.stderr
    assert "● ended: callback" in after.stdout
    nothing = command("status", "--ray", cluster)
    assert "no run is there" in nothing.stdout


@pytest.mark.cluster
def test_figures_reach_the_metrics_port_of_a_node(cluster: str, tmp_path: Path) -> None:
    """Read back as Prometheus would, while the run goes on."""
    wanted = ("env_steps", "updates", "inserted", "sampled", "replay_size", "weights_version")
    pages: list[str] = []

    def done(status: RunStatus) -> bool:
        if not status.updates:
            return False
        try:
            pages[:] = [metrics_text()]
        except OSError:  # a node that has no time to answer
            return False
        return all(value(pages[0], name) for name in wanted)

    run(cluster, tmp_path, done)
    for name in wanted:
        assert value(pages[0], name) > 0.0, name


def value(page: str, name: str) -> float:
    """Of the run's metric ``apexrl_NAME``, whatever Ray puts before and after it; 0 when it is not there."""
    found = re.search(rf'^\w*apexrl_{name}(?:_total)?{{[^}}]*run="seen"[^}}]*}} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found else 0.0


# --- without a cluster


class Kept:
    """Stands for a gauge or a counter of Ray's."""

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        assert description
        self.name, self.tags, self.values = name, tag_keys, list[float]()

    def set_default_tags(self, tags: dict[str, str]) -> Kept:
        assert tuple(tags) == self.tags
        self.run = tags["run"]
        return self

    def set(self, value: float) -> None:
        self.values.append(value)

    def inc(self, value: float) -> None:
        assert value > 0  # Ray refuses others
        self.values.append(value)


def test_counters_grow_by_what_is_new_and_unknown_figures_stay_untold(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Kept] = {}

    def make(*arguments: Any) -> Kept:
        kept = Kept(*arguments)
        made[kept.name] = kept
        return kept

    monkeypatch.setattr(ray_metrics, "Gauge", make)
    monkeypatch.setattr(ray_metrics, "Counter", make)
    meters = Meters("run-7")
    meters.set(RunStatus(env_steps=100, dropped={"lost_items": 0}), {"inserted": 90, "sampled": 0})
    later = RunStatus(
        env_steps=150, updates=3, train_return=21.5, replay_size=80, policy_lag=PolicyLag(2.5, 4.0, 9.0),
        dropped={"lost_items": 12, "steps": 5}, restarts={"actor": 1, "shard": 1},
    )  # fmt: skip
    meters.set(later, {"inserted": 130, "sampled": 512})
    meters.set(later, {"inserted": 130, "sampled": 512})
    told = {name: kept.values for name, kept in made.items()}
    assert {kept.run for kept in made.values()} == {"run-7"}
    assert told["apexrl_env_steps"] == [100, 50]
    assert told["apexrl_inserted"] == [90, 40]
    assert told["apexrl_sampled"] == [512]
    assert told["apexrl_lost_items"] == [12]
    assert told["apexrl_restarts"] == [2]
    assert told["apexrl_policy_lag_mean"] == [2.5, 2.5]
    assert told["apexrl_train_return"] == [21.5, 21.5]
    assert told["apexrl_eval_return"] == []
    assert told["apexrl_replay_size"] == [0, 80, 80]


def shown(picture: Any, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(picture)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def a_record(age_seconds: float = 0.0) -> Record:
    workers = [
        WorkerStatus("learner-0", "learner", 0, pid=41, state="learning", rate=19.5),
        WorkerStatus("actor-0", "actor", 0, pid=42, state="acting", rate=812.0, restarts=2),
        WorkerStatus("actor-1", "actor", 1, state="restarting", heartbeat_age_seconds=33.0),
    ]
    status = RunStatus(
        phase="training", elapsed_seconds=75.0, env_steps=123_456, env_steps_per_second=8123.0, updates=5123,
        replay_size=41_234, replay_capacity=100_000, workers=workers, restarts={"actor": 2, "shard": 1},
        dropped={"lost_items": 977},
    )  # fmt: skip
    groups = (
        GroupRecord("home", "node-a", "up", ("learner-0",), 0),
        GroupRecord("shard-0", "node-b", "up", ("actor-0",), 1, 41_234, 50_000, 8000.0, 9700.0),
        GroupRecord("shard-1", "", "lost", ("actor-1",), 0, 0, 50_000),
    )
    return Record("atari-1", "/runs/atari-1", "node-a", 4321, time.time() - age_seconds, status, groups)


def test_the_picture_says_who_is_where() -> None:
    lines = shown(ray_status._picture(a_record(), 140)).splitlines()
    row = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert row["atari-1"][1:4] == ["●", "training", "01:15"]
    assert row["shard-0"][1:] == ["●", "up", "node-b", "41.2k", "50.0k", "8000", "9700", "1"]
    assert row["shard-1"][1:] == ["●", "lost", "–", "0", "50.0k", "0", "0", "0"]
    assert row["home"][1:] == ["●", "up", "node-a", "–", "–", "–", "–", "0"]
    assert row["actor-0"][1:] == ["●", "acting", "node-b", "42", "812.0", "0.0", "s", "ago", "2"]
    assert row["actor-1"][1:] == ["●", "restarting", "–", "–", "–", "33.0", "s", "ago", "0"]
    assert row["restarts"] == ["restarts", "3", "2", "actor,", "1", "shard"]
    assert row["dropped"] == ["dropped", "977", "977", "lost", "items"]
    assert "silent for 00:42" in shown(ray_status._picture(a_record(age_seconds=42.0), 140))


def test_a_line_for_every_run_of_a_cluster() -> None:
    text = shown(ray_status._table_of_runs([a_record()], 2, "auto", 140))
    line = next(line for line in text.splitlines() if line.startswith("atari-1"))
    assert line.split() == [
        "atari-1", "●", "training", "node-a:4321", "123.5k", "8123", "0", "–", "1", "2", "3",
    ]  # fmt: skip
    assert "2 more did not answer" in text
    assert "apexrl train PRESET --ray auto" in shown(ray_status._table_of_runs([], 0, "auto", 140))


@pytest.mark.parametrize("width", [70, 80, 100, 200])
def test_pictures_fit_and_names_stay(width: int) -> None:
    """Where there is no terminal, rich takes 80 columns."""
    record = replace(a_record(), name="seen", host="a-rather-long.name.of.a.machine", folder="/r")
    runs = shown(ray_status._table_of_runs([record], 0, "auto", width), width).splitlines()
    assert runs[1].split()[:3] == ["seen", "●", "training"]
    lines = [*runs, *shown(ray_status._picture(record, width), width).splitlines()]
    assert max(map(len, lines)) <= width
    for name in ("home", "shard-0", "learner-0", "actor-1"):
        assert any(line.startswith(f"{name} ") for line in lines), name


def test_a_run_at_home_is_told_by_its_log(tmp_path: Path) -> None:
    folder = new_folder(Config(name="home", out=str(tmp_path)))
    log = RunLog(folder.path)
    log.started(Config(), folder.path)
    log.update(RunStatus(phase="training", elapsed_seconds=61.0, env_steps=900, updates=70, train_return=33.0))
    log.close()
    console = Console(file=io.StringIO(), width=120)
    assert ray_status.show_folder(folder.path, console=console) == 0
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "● training, says its log  01:01" in text
    assert re.search(r"env steps +900 ", text)
    folder.write_summary({"env_steps": 900, "stopped_by": "minutes", "restarts": {"actor": 4}})
    text = shown(ray_status.picture_of_folder(folder, "", 140))
    assert "● ended: minutes" in text
    assert "4 actor" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_watching_goes_on_until_ctrl_c(tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_folder(Config(name="watched", out=str(tmp_path)))
    log, turns = RunLog(folder.path), iter((11_111, 22_222))
    log.started(Config(), folder.path)

    def turn(seconds: float) -> None:
        assert 0.0 < seconds <= 5.0
        steps = next(turns, None)
        if steps is None:
            raise KeyboardInterrupt
        log._logged_at = -1e9
        log.update(RunStatus(phase="training", env_steps=steps))

    monkeypatch.setattr("apexrl.cli.redraw.time", SimpleNamespace(sleep=turn))
    console = Console(file=io.StringIO(), width=100, height=40, force_terminal=terminal)
    assert ray_status.show_folder(folder.path, watch=True, console=console) == 0
    log.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.index("11.1k") < text.index("22.2k")


def test_a_cluster_that_has_gone_leaves_the_log(tmp_path: Path) -> None:
    folder = new_folder(Config(name="gone", out=str(tmp_path)))
    folder.ray_path.write_text(json.dumps({"address": f"127.0.0.1:{free_port()}", "namespace": "apexrl-1"}))
    text = io.StringIO()
    assert ray_status.show_folder(folder.path, console=Console(file=text, width=200)) == 0
    assert "its Ray cluster at 127.0.0.1:" in text.getvalue()
    assert "does not answer" in text.getvalue()


def test_the_cluster_of_a_run_that_has_ended_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_folder(Config(name="over", out=str(tmp_path)))
    folder.ray_path.write_text(json.dumps({"address": "127.0.0.1:1", "namespace": "apexrl-1", "auth": "token"}))
    folder.summary_path.write_text("{}")
    monkeypatch.setattr(ray_status, "_look", lambda *_: pytest.fail("it was asked"))
    text = io.StringIO()
    assert ray_status.show_folder(folder.path, console=Console(file=text, width=200)) == 0
    assert "does not answer" not in text.getvalue()
    later = folder.summary_path.stat().st_mtime + 1.0
    os.utime(folder.ray_path, (later, later))  # it goes on
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(ray_status, "_look", lambda address, *_: 7 if os.environ["RAY_AUTH_MODE"] == "token" else 0)
    assert ray_status.show_folder(folder.path, console=Console(file=text, width=200)) == 7
    del os.environ["RAY_AUTH_MODE"]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_who_is_no_head_of_a_cluster_is_not_asked_for_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    """A port of a cluster that has gone may be somebody else's now."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        said = threading.Thread(target=lambda: other.accept()[0].sendall(b"SSH-2.0-OpenSSH_9.6\r\n"))
        said.start()
        assert main.main(["status", "--ray", f"127.0.0.1:{other.getsockname()[1]}"]) == 1
        said.join(60.0)
    assert "is not its head" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--ray", "local"], 2, "--ray local means a new cluster"),
        (["--ray", "nonsense"], 2, "say auto, local, or HOST:PORT"),
        (["--ray", "127.0.0.1:PORT"], 1, "no Ray cluster at 127.0.0.1:"),
        (["nowhere", "--redis", "redis://h"], 2, "give one of"),
        (["nowhere", "--ray", "auto"], 2, "nowhere is not a run folder"),
        (["nowhere"], 2, "nowhere is not a run folder"),
    ],
)
def test_mistakes_are_said(words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word.replace("PORT", str(free_port())) if word.startswith("127") else word for word in words]
    assert main.main(["status", *words]) == code
    said = capsys.readouterr().err.replace("\n", " ")
    assert told in said
    assert "take --ray local" not in said
