"""Impossible actions among a million, for agents in topologies. Each run is ``apexrl train`` as a user types it.

    python benchmarks/masks/run.py impossible                              # every agent in every topology: hours
    python benchmarks/masks/run.py impossible --cells apex:double_dqn seed:ppo --steps 1000000
    python benchmarks/masks/run.py impossible --table                      # nothing is run: the table anew

The environment raises an error at the first impossible action, also at those of steps that nobody sees, so a run that
makes all its steps without a restart has chosen none. A replay agent updates once in 1,000 steps. Runs are
kept in ``records/masks/``.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from apexrl import topologies
from apexrl.agents import AGENTS
from apexrl.agents.agent_info import BOX, BOX_OR_BOTH
from apexrl.topologies import TOPOLOGIES
from benchmarks.lib import report, runs

ENV = "apexrl.envs.toy:Doors-v0"
RECORD = report.RECORDS / "masks" / "impossible.json"


def cells() -> list[str]:
    """``topology:agent`` of all that go together."""
    discrete = [name for name, info in AGENTS.items() if info.needs not in (BOX, BOX_OR_BOTH) and not info.offline]
    live = [topology for topology in TOPOLOGIES if topology != "offline"]  # there nobody acts
    return [f"{topology}:{agent}" for topology in live for agent in discrete if topologies.runs(topology, agent)]


def measured(cell: str, steps: int, told: str, minutes: float) -> dict[str, Any]:
    """One run."""
    topology, agent = cell.split(":")
    mask = ["--mask-in-info"] if told == "info" else []
    flags = ["--env", ENV, "--env-kwargs", "strict", "True", "told", told, "--topology", topology, "--agent", agent]
    flags += [*mask, "--env-steps", str(steps), "--minutes", str(minutes), "--eval-epsilon", "0.1", "--seed", "1"]
    flags += ["--envs-per-actor", "64", "--eval-period-seconds", "1000000", "--hidden", "64", "64"]
    if topology == "a3c":
        flags += ["--epochs", "1", "--minibatches", "1"]  # it runs no others
    elif AGENTS[agent].item != "unroll":  # a cheap learner: acting is what is looked at
        batch = "16" if AGENTS[agent].item == "sequence" else "128"
        flags += ["--updates-per-step", "0.001", "--batch-size", batch, "--min-size", "1000"]
    try:
        summary = runs.train("", f"masks-{topology}-{agent}", flags, 60.0 * (minutes + 5.0))
    except runs.RunFailed as failed:
        raise SystemExit(f"{cell}: {failed}") from failed
    return {
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
        "impossible": sum(summary["restarts"].values()),  # of workers whose environment raised the error
        "return": summary["final_eval_return"],  # with a tenth of random possible actions
        "minutes": summary["wall_seconds"] / 60.0,
    }


def main() -> None:
    known = cells()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=known, choices=known, metavar="TOPOLOGY:AGENT")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--told", choices=("method", "info", "key"), default="method")
    parser.add_argument("--minutes", type=float, default=30.0, help="a run that takes longer is cut")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    found = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    for cell in [] if options.table else options.cells:
        found[cell] = measured(cell, options.steps, options.told, options.minutes)
        print(cell, found[cell], flush=True)
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    rows = [
        [
            *(f"`{name}`" for name in cell.split(":")),
            f"{one['env_steps']:,}",
            f"{one['updates']:,}" if "updates" in one else "–",
            one["impossible"],
            f"{one['return']:.2f}",
        ]
        for cell, one in sorted(found.items())
    ]
    text = f"{report.machine()}; {report.versions('apexrl', 'torch', 'gymnasium')}.\n\n"
    text += report.table(
        ["topology", "agent", "env steps", "updates", "impossible actions", "final return, of 8"], rows
    )
    report.save("impossible-actions", text, found, None)
