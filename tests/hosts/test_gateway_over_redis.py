"""Runs whose workers need the learner's servers, through Redis: hosts find the gateway, and find it again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host_rig import RUN, Command, Places, descendants, wait_for

from apexrl.links.printable import host_name
from apexrl.run.metrics import read_rows

SETTINGS = {
    "hidden": 16,
    "envs-per-actor": 4,
    "actor-slots": 4,
    "lease-seconds": 3,
    "learner-lease-seconds": 2,
    "eval-episodes": 2,
    "eval-envs": 2,
    "checkpoint-seconds": 0.5,
    "stop-at-return": None,
    "env-steps": 1000000,
}
OF = {
    "seed": {"min-size": 200, "updates-per-second": 100, "updates-per-step": 0.05},
    "ga3c": {},
    "a3c --no-hogwild": {},
}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    with Places("loopback", 2, tmp_path) as made:
        yield made


def flags(topology: str) -> list[str]:
    given = [word for name, value in {**SETTINGS, **OF[topology]}.items() for word in (f"--{name}", str(value))]
    return ["--topology", *topology.split(), *given]


def steps(places: Places) -> int:
    try:
        rows = read_rows(places.run_folder / "metrics.jsonl")
    except FileNotFoundError:
        return 0
    return max((int(row["env_steps"]) for row in rows if row.get("env_steps")), default=0)


def goes_on(places: Places, more: int = 400) -> None:
    begun = steps(places)
    wait_for(f"{more} more steps than {begun}", lambda: steps(places) > begun + more)


def gateway_of(command: Command) -> int:
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in descendants(command.pid)}
    return next(pid for pid, name in names.items() if name.startswith("apexrl-gateway"))


def said(places: Places) -> dict[str, Any]:
    """What the run's record says of its gateway."""
    record: dict[str, Any] = json.loads(places.server.ask("GET", f"apexrl:{{{RUN}}}:record"))
    gateway: dict[str, Any] = record["gateway"]
    return gateway


def test_a_host_needs_the_servers_url_and_the_runs_name_alone(places: Places) -> None:
    first = places.actor(0, "--actors", "1")  # before the learner
    learner = places.learner("cartpole", *flags("seed"))
    first.says("joined run test at 127.0.0.1")
    goes_on(places)
    view = places.look()
    wait_for("its slots in the list", lambda: [member.slots for member in places.look().alive] == [[0]])
    assert view.record is not None
    secret = said(places)["token"]
    stop = places.apexrl("stop", "--run", RUN, "--wait-seconds", "60")
    assert stop.finish() == 0, stop.said
    assert learner.finish() == 0, learner.said
    assert first.finish() == 0, first.said
    summary = places.summary()
    assert summary["hosts"]["env_steps"] == summary["env_steps"] > 400
    assert summary["hosts"]["worker_connections"] >= 1
    files = [path for path in places.folder.rglob("*") if path.is_file()]
    assert secret not in "".join(path.read_text(errors="replace") for path in files)


@pytest.mark.long
@pytest.mark.parametrize("topology", ["seed", "ga3c", "a3c --no-hogwild"])
def test_gateway_and_learner_are_killed_and_hosts_find_them_again(places: Places, topology: str) -> None:
    learner = places.learner("cartpole", *flags(topology))
    host = places.actor(0, "--actors", "2")
    host.says("joined run test at 127.0.0.1")
    goes_on(places)
    before = said(places)
    os.kill(gateway_of(learner), signal.SIGKILL)
    learner.says("is back with slots 0, 1")
    goes_on(places)
    assert said(places) == before  # the port is kept for it

    learner.kill()
    host.says("is away: waiting for it")
    resumed = places.apexrl("resume", str(places.run_folder), "--run", RUN, "--env-steps", "1000000")
    host.says("joining run test again")
    resumed.says("has joined with slots")
    goes_on(places, 1000)
    after = said(places)
    assert after["fingerprint"] != before["fingerprint"]
    assert after["token"] != before["token"]
    places.server.kill()  # experience and parameters do not go that way
    goes_on(places)
    places.server.start()
    host.says("the Redis server is back")
    resumed.interrupt()
    assert resumed.finish() == 130, resumed.said
    assert host.finish() == 0, host.said
    assert places.summary()["hosts"]["env_steps"] > 0


@pytest.mark.long
def test_a_host_of_a_gateway_is_scaled_and_drained(places: Places) -> None:
    here = host_name()
    learner = places.learner("cartpole", *flags("seed"))
    host = places.actor(0, "--actors", "1")
    host.says("joined run test at 127.0.0.1")
    goes_on(places)
    stranger = places.actor(1, "--actors", "4")
    assert stranger.finish() == 1
    assert "4 slots for workers of other hosts and 3 free, 4 wanted" in stranger.said
    assert places.apexrl("scale", here, "--actors", "2", "--run", RUN).finish() == 0
    wait_for("two workers", lambda: [len(member.slots) for member in places.look().alive] == [2])
    goes_on(places)
    assert places.apexrl("drain", here, "--run", RUN).finish() == 0
    assert host.finish() == 0, host.said
    learner.says("this host was drained")
    assert places.actor(0, "--actors", "1").finish() == 75
    assert places.apexrl("drain", here, "--undo", "--run", RUN).finish() == 0
    back = places.actor(0, "--actors", "1")
    wait_for("two workers again", lambda: [len(member.slots) for member in places.look().alive] == [2])
    goes_on(places)
    assert places.apexrl("stop", "--run", RUN).finish() == 0
    assert [learner.finish(), back.finish()] == [0, 0]


@pytest.mark.long
def test_what_a_run_through_redis_cannot_be_told_is_refused(places: Places) -> None:
    apex = places.learner("cartpole", "--listen", "127.0.0.1:0", run="apex")
    assert apex.finish() == 2
    assert "--listen means nothing to topology apex with --redis" in apex.said
    hogwild = places.learner("cartpole", "--topology", "a3c", run="hogwild")
    assert hogwild.finish() == 2
    assert "--no-hogwild" in hogwild.said
