"""One run of apexrl, on Ray or at home: how many steps its learner consumes, or the seconds until CartPole is solved.

    python benchmarks/ray/apexrl_run.py impala --measure rate --where local      # prints one JSON object
    python benchmarks/ray/apexrl_run.py frames --measure rate --where home

It is run by ``rllib.py``, ``rllib_apex.py``, ``learners.py`` and ``shards.py``. ``frames`` is Ape-X on frames of
Atari's size (``frames_env.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from apexrl import presets
from apexrl.api import run
from apexrl.config import Config, convert
from apexrl.config.placement import Ray
from apexrl.run.status import RunStatus

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.ray.cases import (
    ALGORITHMS,
    CAPACITY,
    CPUS_EACH,
    DQN_CASES,
    EPISODES,
    GOAL,
    GOALS,
    SETTINGS,
    Setting,
    windowed,
)
from benchmarks.ray.nodes import nodes
from benchmarks.topologies.apexrl_run import Consumption, configured
from benchmarks.topologies.cases import Case

FRAMES = Case("benchmarks.ray.frames_env:Frames-v0", (512,), batch_steps=128, workers=2, envs=8)
QUIET = {
    "RAY_worker_niceness": "0",  # home's processes have none
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}


class Rates(Consumption):
    """Updates a second, too."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._updates: list[tuple[float, int]] = []

    def update(self, status: RunStatus) -> bool:
        if status.phase == "training":
            self._updates.append((time.monotonic(), status.updates))
        return super().update(status)

    def result(self) -> dict[str, Any]:
        began = self.counted.series[0][0]
        inside = [point for point in self._updates if point[0] >= began]
        (first, low), (last, high) = inside[0], inside[-1]
        return super().result() | {"updates_per_second": (high - low) / (last - first)}


def arms(name: str) -> tuple[str, str]:
    """Topology and agent of an algorithm of ``cases.py``."""
    return ("apex", "dueling_dqn") if name == "dqn" else ("impala", name)


def rate_config(name: str, setting: Setting, seed: int, out: str, units: int) -> Config:
    case = setting.case
    if name == "frames":
        config = configured(case, "apex", "dqn", seed, out)
        return convert.override(config, {"stack": 4, "image_units": units, "capacity": 50_000, "min_size": 2_000})
    config = configured(case, *arms(name), seed, out)
    often = setting.samples_per_step / case.batch_steps
    return convert.override(config, {"updates_per_step": often}) if name == "dqn" else config


def goal_config(name: str, setting: Setting, seed: int, out: str, minutes: float) -> Config:
    case = setting.case
    config = presets.with_topology(presets.preset("cartpole").config, *arms(name))
    wanted: dict[str, Any] = {
        "seed": seed, "out": out, "hidden": case.hidden, "actors": case.workers, "envs_per_actor": case.envs,
        "device": "cpu", "learner_threads": 1, "eval_episodes": EPISODES, "stop_at_return": GOAL, "minutes": minutes,
    }  # fmt: skip
    if name == "dqn":
        wanted |= {
            "batch_size": case.batch_steps, "updates_per_step": setting.samples_per_step / case.batch_steps,
            "capacity": CAPACITY,
        }  # fmt: skip
    else:
        wanted |= {"unroll_length": case.unroll, "batch_size": case.unrolls}
        wanted |= {"epochs": case.epochs, "minibatches": case.minibatches} if name == "appo" else {}
    return convert.override(config, wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=(*ALGORITHMS, "frames"))
    parser.add_argument("--measure", choices=SETTINGS, default="rate")
    parser.add_argument("--where", default="local", help="home: without Ray; else an address of Ray's (default: local)")
    parser.add_argument("--case", choices=DQN_CASES, default="rate", help="(rate of dqn) network and batch")
    parser.add_argument("--shards", type=int, default=1, help="of the replay, on Ray")
    parser.add_argument("--learners", type=int, default=1, help="(rate of impala, appo) that make updates together")
    parser.add_argument("--nodes", type=int, default=1, help="of Ray with a learner each; more than one: of its own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--minutes", type=float, default=10.0, help="that the goal may take")
    parser.add_argument("--units", type=int, default=64, help="behind the convolutions of frames")
    options = parser.parse_args()
    if options.case != "rate" and (options.algorithm, options.measure) != ("dqn", "rate"):
        parser.error("--case is for rates of dqn")
    if options.learners < options.nodes:
        parser.error("--nodes want a learner each")
    os.environ.update(QUIET)
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)  # nodes import frames_env from there
    name, learners = options.algorithm, options.learners
    with ExitStack() as stack:
        out = stack.enter_context(tempfile.TemporaryDirectory())
        where: dict[str, Any] = {}
        if options.where != "home" or options.nodes > 1:
            address = (
                stack.enter_context(nodes(options.nodes, CPUS_EACH)).address if options.nodes > 1 else options.where
            )
            shards = max(options.shards, learners)
            where["placement"] = Ray(address, replay_shards=shards, learner_nodes=options.nodes, wait_seconds=60.0)
        if options.measure != "goal":
            setting = Setting(FRAMES) if name == "frames" else SETTINGS[options.measure][name]
            setting = DQN_CASES[options.case] if options.case != "rate" else setting
            setting = windowed(setting, options.warm_up, options.window)
            watch = Rates(setting.case)
            config = rate_config(name, setting, options.seed, out, options.units)
            config = convert.override(config, {"learners": learners}) if learners > 1 else config
            summary = run(config, observers=[watch], **where).summary
            result = watch.result() | {"restarts": summary["restarts"]}
        else:
            if name == "frames":
                parser.error("frames have no goal")
            config = goal_config(name, GOALS[name], options.seed, out, options.minutes)
            summary = run(config, **where).summary
            result = {
                "solved": summary["stopped_by"] == "stop_at_return",
                "seconds": summary["wall_seconds"],
                "with_start": summary["wall_seconds"] + summary["startup_seconds"],
                "env_steps": summary["env_steps"],
                "final": summary["final_eval_return"],
            }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
