"""How much more processor time do the steps of a run take with masks?

    python benchmarks/masks/run.py work                # five rounds, ten minutes
    python benchmarks/masks/run.py work --steps 20000

Runs with and without, in turn, each in lock-step in this process (``--serial``). What is compared is the processor time
of a run, not the clock's: so it may be measured beside other work. ``cost`` measures whole runs on a quiet machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from apexrl.agents import AGENTS, with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch import launch
from benchmarks.lib import report

CELLS = ("apex:double_dqn", "seed:discrete_sac", "impala:ppo")  # sample_factory has no --serial
KINDS = {"without": "nowhere", "with": "key"}


def seconds(cell: str, told: str, steps: int, out: Path, name: str) -> float:
    """Processor time of a run, in seconds."""
    topology, agent = cell.split(":")
    settings: dict[str, Any] = {
        "env": "apexrl.envs.toy:Doors-v0", "env_kwargs": {"told": told}, "serial": True, "out": str(out), "name": name,
        "hidden": (64, 64), "actors": 1, "envs_per_actor": 16, "env_steps": steps, "eval_episodes": 1,
        "eval_period_seconds": 1e6, "learner_threads": 1, "seed": 1,
    }  # fmt: skip
    if AGENTS[agent].item != "unroll":
        settings |= {"updates_per_step": 0.1, "min_size": 1_000, "batch_size": 64}
    config = override(with_agent(Config(topology=topology), agent), settings)
    began = time.process_time()
    launch(config, [])
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="TOPOLOGY:AGENT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps of each run")
    options = parser.parse_args()
    rows, raw = [], dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        for cell in options.cells:
            found: dict[str, list[float]] = {kind: [] for kind in KINDS}
            seconds(cell, "key", 2_000, Path(folder), f"{cell}-first".replace(":", "-"))  # what is loaded once
            for turn in range(options.rounds):
                for kind in KINDS if turn % 2 == 0 else reversed(KINDS):
                    name = f"{cell}-{kind}-{turn}".replace(":", "-")
                    found[kind].append(seconds(cell, KINDS[kind], options.steps, Path(folder), name))
            ratios = [with_masks / without for without, with_masks in zip(*found.values(), strict=True)]
            times = (report.spread([1e6 * one / options.steps for one in of], " µs") for of in found.values())
            rows.append([f"`{cell}`", *times, f"{median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})"])
            raw[cell] = found
            print(cell, found, flush=True)
    text = f"{report.machine()}; {report.versions('apexrl', 'torch')}.\n"
    text += "Processor time of an environment step, its share of the updates included: median (least–greatest).\n\n"
    text += report.table(["topology, agent", *KINDS, "with / without, median of rounds"], rows)
    report.save("masks-work", text, raw, None)
