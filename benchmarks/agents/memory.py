"""How much of the whole observation's return does a memory get without velocities?

    python benchmarks/agents/run.py memory                             # HalfCheetah-v5, bar 80 %: many hours
    python benchmarks/agents/run.py memory --task pendulum             # Pendulum-v1: an hour
    python benchmarks/agents/run.py memory --task pendulum --memory lstm --agent td3 --seeds 1

Three runs for each seed, of the agent's defaults: with the whole observation; without velocities and a memory; without
velocities, with a memory that sees previous actions and rewards (Ni et al. 2022, section 5).
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from benchmarks.lib import report, runs


class Task(NamedTuple):
    """An environment whose observation is a vector with velocities last."""

    env: str
    first: int  # numbers that are no velocities
    env_steps: int
    least: float  # the return that counts as nothing


TASKS = {
    "halfcheetah": Task("HalfCheetah-v5", 8, 1_000_000, 0.0),
    "pendulum": Task("Pendulum-v1", 2, 30_000, -1_600.0),
}
BAR = 0.8


def arms(task: Task, memory: str) -> dict[str, list[str]]:
    """What is compared: name -> flags."""
    part = ["--env", "apexrl.envs.memory_tasks:Shown-v0", "--env-kwargs", f"env={task.env}", f"first={task.first}"]
    return {
        "everything": ["--env", task.env],
        "no velocities": part,
        f"no velocities, {memory}": [*part, "--memory", memory, "--last-action-reward"],
    }


def measured(task: Task, name: str, flags: list[str], options: argparse.Namespace) -> list[float]:
    """The final return of each seed."""
    found = []
    for seed in options.seeds:
        steps = options.env_steps or task.env_steps
        words = [*flags, "--agent", options.agent, "--seed", str(seed), "--env-steps", str(steps)]
        label = f"memory-{options.task}-{name.replace(', ', '-').replace(' ', '-')}-{seed}"
        summary = runs.train("", label, words, timeout=3600.0 * options.hours)
        found.append(float(summary["final_eval_return"]))
        print(f"{name}, seed {seed}: {found[-1]:.1f} after {summary['env_steps']} steps", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="halfcheetah")
    parser.add_argument("--agent", default="sac")
    parser.add_argument("--memory", choices=("lstm", "gru", "transformer"), default="gru")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--env-steps", type=int, default=0, help="of a run; 0: the task's own")
    parser.add_argument("--hours", type=float, default=12.0, help="after which a run is cut")
    options = parser.parse_args()
    task = TASKS[options.task]
    found = {name: measured(task, name, flags, options) for name, flags in arms(task, options.memory).items()}
    whole = float(np.mean(found["everything"])) - task.least
    shares: dict[str, Any] = {name: (float(np.mean(of)) - task.least) / whole for name, of in found.items()}
    rows = [(name, report.spread(of), f"{shares[name]:.0%}") for name, of in found.items()]
    text = report.table(("observation", "final return", f"share above {task.least:g}"), rows)
    met = list(shares.values())[-1] >= BAR
    text += f"\n\n{options.agent} on {task.env}: bar {BAR:.0%} of the whole observation's: {'met' if met else 'missed'}"
    print(text)
    report.save(f"memory-{options.task}", text, {"returns": found, "shares": shares, "options": vars(options)}, None)
    return 0 if met else 1
