"""Runs of the table of topologies and placements (``apexrl.topologies.placements.CELLS``), each host a process group.

The learner's host runs ``killed_run.py``; two others bring all actors or environments, with ``apexrl actor`` or
``apexrl envs``. Redis is a server of the cell's own, Ray has two nodes of its own, all on this machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from apexrl.topologies.placements import CELLS, LEARNERS, MACHINE, PLACEMENTS
from benchmarks.lib import hosts, processes

__all__ = ["LEARNERS", "PLACEMENTS", "RUNNING", "Cell", "killed_role", "run", "settings"]

Cell = tuple[str, str]

RUNNING: list[Cell] = [cell for cell, how in CELLS.items() if not how.reason and cell[0] != "offline"]
"""``offline`` makes no steps: it learns from a dataset, and is not in this table."""
TOKEN = "a-token-of-this-benchmark"
HOSTS = ("host-1", "host-2")
NODE_CPUS = 2

_STAYING = {  # the role that is killed on one machine: the one that all others need
    "apex": "learner",
    "impala": "learner",
    "gorila": "parameter_server",
    "sample_factory": "learner",
    "seed": "inference_server",
    "ga3c": "model_server",
    "a3c": "worker",
    LEARNERS: "learner",
}
_MOVING = {  # … and on Ray
    "sample_factory": "rollout_worker",
    "seed": "env_worker",
    "ga3c": "env_worker",
    "a3c": "worker",
}


def killed_role(cell: Cell) -> str:
    """The role of which one worker is killed."""
    row, placement = cell
    if placement == MACHINE:
        return _STAYING[row]
    if placement == "ray":
        return _MOVING.get(row, "actor")
    return "gateway" if row in ("seed", "ga3c", "a3c") else "intake"


def settings(cell: Cell) -> dict[str, Any]:
    """What makes a run of this cell: its topology, what that needs there, and who brings environments."""
    row, placement = cell
    of_row = {"topology": "apex", "learners": 2} if row == LEARNERS else {"topology": row}
    elsewhere = {"actors": 0} if placement == "listen" else {}
    return {**of_row, **elsewhere, **CELLS[cell].needs}


def run(
    cell: Cell, more: Mapping[str, Any], folder: Path, kill_at: int, timeout: float, address: str = ""
) -> dict[str, Any]:
    """One run of the cell: its summary, and ``killed``: which worker, and when.

    Args:
        more: settings, beside those of the cell.
        folder: of the run's folder and the logs of its hosts.
        kill_at: environment steps after which a worker is killed.
        timeout: seconds that the run may take.
        address: of a Ray cluster; empty: one of its own.

    Raises:
        benchmarks.lib.processes.Failed: it failed, or took longer.
    """
    with placed(cell, folder, address) as where:
        told = {"where": where, "role": killed_role(cell), "steps": kill_at}
        told["settings"] = {"out": str(folder), "name": "run", **more, **settings(cell)}
        script = Path(__file__).parent / "killed_run.py"
        return processes.answer([sys.executable, str(script)], timeout, stdin=json.dumps(told))


@contextmanager
def placed(cell: Cell, folder: Path, address: str = "") -> Iterator[dict[str, Any]]:
    """Servers and other hosts of a cell; yields the arguments of its placement, by its name."""
    row, placement = cell
    with ExitStack() as stack:
        if placement == "redis":
            server = hosts.RedisServer("127.0.0.1", hosts.free_port(), (), _short(stack), ())
            stack.callback(server.kill)
            server.start()
            known = {"APEXRL_REDIS_URL": server.tcp_url}
            for host in HOSTS:
                words = ["actor", "--run", "run", "--actors", "1"]
                words += ["--learners", "1"] if row == LEARNERS and host == HOSTS[0] else []
                stack.enter_context(_host(words, folder / host, known))
            yield {"redis": {"url": server.tcp_url, "run": "run", "actors": False}}
        elif placement == "listen":
            there = f"127.0.0.1:{hosts.free_port()}"
            words = ["envs", "--connect", there, "--actors", "1"]
            for host in HOSTS:
                stack.enter_context(_host(words, folder / host, {"APEXRL_TOKEN": TOKEN}))
            yield {"listen": {"listen": there, "token": TOKEN}}
        elif placement == "ray":
            # an actor, a shard and the learner take parts of a processor: the nodes share those of this machine
            parts = {"actor_cpus": 0.25, "shard_cpus": 0.25, "learner_cpus": 0.5}
            parts |= {"inference_cpus": 0.25, "wait_seconds": 90.0}
            yield {"ray": {"address": address or _cluster(stack), "replay_shards": 2, **parts}}
        else:
            yield {}


def _cluster(stack: ExitStack) -> str:
    """Address of a Ray with a head without processors and two nodes."""
    from benchmarks.ray.nodes import nodes  # the other placements need no Ray

    return stack.enter_context(nodes(2, NODE_CPUS, 100 * 2**20)).address


def _short(stack: ExitStack) -> Path:
    """A folder for a socket, whose path has at most 107 bytes."""
    import tempfile

    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="apexrl-")))


@contextmanager
def _host(words: list[str], folder: Path, known: Mapping[str, str]) -> Iterator[None]:
    """Another host: a command in a group of processes, which ends with the run that it has joined."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "apexrl.cli", *words, "--out", str(folder)]
    host = hosts.Command(command, folder / "host.log", {**os.environ, **known}, folder)
    try:
        yield
        try:
            if "joined run" in host.said:
                host.finish(60.0)
        except TimeoutError as error:
            raise processes.Failed(str(error)) from None
    finally:
        host.close()
