"""One topology of apexrl on a case of ``cases.py``: how many environment steps its learner consumes.

    python benchmarks/topologies/apexrl_run.py sample_factory appo --case cartpole      # prints one JSON object

It is run by ``peers.py`` and ``learning.py``. Steps are counted where learners report policy lag: every
step that was learned from is there once, and final observations and padding are not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from apexrl import presets, topologies
from apexrl.api import run
from apexrl.config import Config, convert
from apexrl.run.observers import IdleObserver
from apexrl.run.status import RunStatus

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.topologies.cases import CASES, Case, Counted

LONG = 36_000.0  # seconds: no evaluation and no checkpoint in between


def configured(case: Case, topology: str, agent: str, seed: int, out: str) -> Config:
    """The case for one topology. Agents of transitions read every step once on average."""
    config = presets.with_topology(convert.override(Config(), {"env": case.env}), topology, agent)
    wanted: dict[str, Any] = {
        "seed": seed, "out": out, "hidden": case.hidden, "actors": case.workers, "envs_per_actor": case.envs,
        "optimizer": "adam", "learning_rate": 1e-4, "device": "cpu", "learner_threads": 1, "gamma": 0.99,
        "eval_period_seconds": LONG, "eval_episodes": 1, "eval_envs": 1, "checkpoint_seconds": LONG,
    }  # fmt: skip
    if case.atari:
        wanted |= {"atari": True, "stack": 4, "reward_clip": 1.0, "image_units": case.hidden[-1]}
    if topologies.TOPOLOGIES[topology].kinds == ("unroll",) or config.agent.agent in ("a2c", "impala", "ppo", "appo"):
        wanted |= {
            "unroll_length": case.unroll, "batch_size": case.unrolls, "epochs": case.epochs,
            "minibatches": case.minibatches,
        }  # fmt: skip
    else:
        wanted |= {
            "batch_size": case.batch_steps, "updates_per_step": 1.0 / case.batch_steps,
            "min_size": 10 * case.batch_steps, "capacity": 100_000, "pull_period": 20,
        }  # fmt: skip
    return convert.override(config, wanted)


class Consumption(IdleObserver):
    """Stops the run when the window is over."""

    def __init__(self, case: Case) -> None:
        self.counted = Counted(case)
        self.made: list[tuple[float, int]] = []  # monotonic seconds, environment steps that were made
        self._steps: dict[tuple[str, int], int] = {}  # of a generation of a reporter
        self._frames = case.frames

    def event(self, kind: str, values: dict[str, Any]) -> None:
        if kind == "metrics":
            histogram = values["run_lag_histogram"]
            self._steps[values["reporter"], values["generation"]] = sum(histogram.values())

    def update(self, status: RunStatus) -> bool:
        now = time.monotonic()
        if status.phase == "training":
            self.made.append((now, status.env_steps))
        return self.counted.add(now, self._frames * sum(self._steps.values()))

    def result(self) -> dict[str, Any]:
        found = self.counted.result()
        began = self.counted.series[0][0]
        inside = [point for point in self.made if point[0] >= began]
        (first, low), (last, high) = inside[0], inside[-1]
        return found | {"made_per_second": self._frames * (high - low) / (last - first)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topology", choices=topologies.TOPOLOGIES)
    parser.add_argument("agent", nargs="?", default="", help="default: the topology's own")
    parser.add_argument("--case", choices=CASES, default="cartpole")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=JSON", help="settings beyond the case's")
    options = parser.parse_args()
    case = CASES[options.case]
    case = dataclasses.replace(case, warm_up=options.warm_up or case.warm_up, window=options.window or case.window)
    with tempfile.TemporaryDirectory() as out:
        config = configured(case, options.topology, options.agent, options.seed, out)
        given = dict(word.split("=", 1) for word in options.set)
        config = convert.override(config, {name: json.loads(value) for name, value in given.items()})
        watch = Consumption(case)
        ended = run(config, observers=[watch])
        result = watch.result() | {"agent": config.agent.agent, "restarts": ended.summary["restarts"]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
