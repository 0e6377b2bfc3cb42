"""What the benchmarks over several hosts stand on: the rig of ``tests/hosts``, and where their runs are kept."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.lib import report

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "hosts"))

import experience_audit as audit
import network_namespaces
from host_rig import RUN, Command, Places, RedisServer, free_port, wait_for
from tcp_relay import Relay

__all__ = ["RUN", "Command", "Places", "RedisServer", "Relay", "audit", "free_port", "wait_for"]


def kind() -> str:
    """``namespaces`` where they are allowed, else ``loopback``: the same processes and links without own addresses."""
    why = network_namespaces.available()
    if why:
        print(f"{why}: all hosts are on the loopback", flush=True)
    return "loopback" if why else "namespaces"


def meant(kind: str) -> str:
    """For the line above a table."""
    return "each host a network namespace" if kind == "namespaces" else "all hosts on the loopback"


def folder(name: str) -> Path:
    """Empty, for the logs and run folders of one run."""
    path = report.OUT / "hosts" / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def rows(run: Path, kind: str) -> list[dict[str, Any]]:
    """What the learner's run has written so far of one kind (``status``, ``evaluation``), oldest first."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return []
    whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    return [row for row in map(json.loads, whole) if row["kind"] == kind]


def status(run: Path) -> dict[str, Any]:
    """The newest periodic sample of the learner's run; empty before the first."""
    return (rows(run, "status") or [{}])[-1]


def redis_version(server: RedisServer) -> str:
    return f"Redis {server.ask('INFO', 'server')['redis_version']}"
