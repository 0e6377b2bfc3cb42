"""Runs for comparisons that nobody has to wait for, and a small plan of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from apexrl import compare
from apexrl.api import Run
from apexrl.compare.plan import Plan
from apexrl.config import Config
from apexrl.errors import EnvError, WorkerError
from apexrl.run.folder import make_summary
from apexrl.run.status import Observer, PolicyLag, RunStatus
from new_folders import new_folder

LEARNED = 640  # env steps in the learner's batches of a made-up run


class FakeRuns:
    """Stands for ``api.run``: every run takes 10 s, makes 1000 steps and reaches a return of 100 × its seed."""

    def __init__(self, fail: Sequence[str] = (), interrupt: str = "", before_folder: bool = False) -> None:
        self.made: list[str] = []
        self.fail, self.interrupt, self.before_folder = fail, interrupt, before_folder

    def __call__(
        self, config: Config, *, observers: Sequence[Observer] = (), on_folder: Callable[[Path], None] | None = None
    ) -> Run:
        assert on_folder is not None
        self.made.append(config.name)
        if config.name in self.fail and self.before_folder:
            raise EnvError("the licence server is away\nand more")
        folder = new_folder(config)
        on_folder(folder.path)
        status = RunStatus(phase="training", elapsed_seconds=10.0, env_steps=1000, updates=20, eval_return=1.0,
                           policy_lag=PolicyLag(1.5, 3.0, 8.0), env_steps_per_second=100.0,
                           restarts={"actor": 1})  # fmt: skip
        for observer in observers:
            observer.started(config, folder.path)
            observer.update(status)
        with folder.metrics_path.open("w", encoding="utf-8") as file:
            for step in (1, 2, 3, 4):
                row = {"kind": "evaluation", "env_steps": 250 * step, "wall_seconds": 2.5 * step}
                file.write(json.dumps({**row, "mean": 25.0 * step * config.seed, "final": step == 4}) + "\n")
        stopped_by = "interrupted" if config.name == self.interrupt else "minutes"
        failed = config.name in self.fail
        finals = {"best": {"mean": 100.0 * config.seed}, "last": {"mean": 90.0 * config.seed}}
        summary = make_summary(config, status, stopped_by="error" if failed else stopped_by, finals=finals)
        summary["policy_lag"]["steps"] = LEARNED
        folder.write_summary(summary)
        if failed:
            raise WorkerError("actor-0 failed 100 times\nTraceback …")
        return Run(folder.path, summary)


def a_plan(agents: Sequence[str] = ("dqn", "c51"), seeds: int = 2, **more: Any) -> Plan:
    return compare.plan("cartpole", ["apex"], agents, seeds=seeds, minutes=1.0, **more)


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


def told(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def nothing(config: Config) -> None: ...
