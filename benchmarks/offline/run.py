"""What agents learn from Minari datasets, beside published scores: whole ``apexrl train --dataset`` runs.

    python benchmarks/offline/run.py                                             # all rows, five seeds: days
    python benchmarks/offline/run.py --rows pen-human --agents iql --seeds 1     # one run
    python benchmarks/offline/run.py --dataset DIR --env ID --updates 20000      # a dataset of your own

Datasets must be on this machine (``minari download D4RL/pen/human-v2``); a row without its dataset is named and left
out. Scores are normalised as the dataset says: 0 is a random policy's return, 100 an expert's. Without such
references, as of a dataset of your own, returns are shown. Weights are the last ones, as in CORL's "last scores", and
are played in the run's final evaluation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from apexrl.datasets.minari_files import Dataset
from apexrl.errors import DatasetError
from benchmarks.lib import report

AGENTS = ("bc", "td3_bc", "cql", "iql")
ADROIT = ("--gamma", "0.99", "--advantage-scale", "0.5")  # IQL's for Adroit; others read no such scale


@dataclass(frozen=True)
class Row:
    """A dataset and what others have published for it: agent -> normalised score."""

    name: str
    dataset: str
    env: str
    published: dict[str, float] = field(default_factory=dict)


ROWS = (  # CORL, last scores: README.md of tinkoff-ai/CORL, commit 022e449, of D4RL's v1 files
    Row("pen-human", "D4RL/pen/human-v2", "gymnasium_robotics:AdroitHandPen-v1",
        {"bc": 71.03, "td3_bc": -3.88, "cql": 13.71, "iql": 78.49}),
    Row("pen-expert", "D4RL/pen/expert-v2", "gymnasium_robotics:AdroitHandPen-v1",
        {"bc": 109.65, "td3_bc": 122.53, "cql": -1.41, "iql": 128.05}),
    Row("door-expert", "D4RL/door/expert-v2", "gymnasium_robotics:AdroitHandDoor-v1",
        {"bc": 105.35, "td3_bc": -0.33, "cql": -0.32, "iql": 106.65}),
)  # fmt: skip


def command(row: Row, agent: str, seed: int, updates: int, out: Path) -> list[str]:
    """One run."""
    own = ADROIT if agent == "iql" and row.env.startswith("gymnasium_robotics:Adroit") else ()
    words = ["train", "--agent", agent, "--recipe", "paper", "--dataset", row.dataset, "--env", row.env]
    words += ["--updates", str(updates), "--seed", str(seed), "--out", str(out), "--name", f"{row.name}-{agent}-{seed}"]
    return [sys.executable, "-m", "apexrl.cli", *words, "--eval-period-seconds", "120", "--resume-or-start", *own]


def score(dataset: Dataset, result: float) -> float:
    """Normalised where the dataset has references, else as it is."""
    low, high = (dataset.metadata.get(f"ref_{end}_score") for end in ("min", "max"))
    return result if low is None or high is None else 100.0 * (result - low) / (high - low)


def measured(row: Row, agents: list[str], seeds: list[int], updates: int, out: Path) -> list[dict[str, Any]]:
    dataset = Dataset(row.dataset)
    found = []
    for agent in agents:
        scores = []
        for seed in seeds:
            words = command(row, agent, seed, updates, out)
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            summary = json.loads((out / f"{row.name}-{agent}-{seed}" / "summary.json").read_text())
            scores.append(score(dataset, summary["last_weights_return"]))
        found.append({"dataset": row.dataset, "agent": agent, "updates": updates, "scores": scores,
                      "published": row.published.get(agent)})  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[row.name for row in ROWS])
    parser.add_argument("--agents", nargs="+", default=list(AGENTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--dataset", default="", help="one of your own, instead of the rows")
    parser.add_argument("--env", default="", help="its environment")
    parser.add_argument("--out", type=Path, default=report.OUT / "offline")
    wanted = parser.parse_args()
    rows = [row for row in ROWS if row.name in wanted.rows]
    if wanted.dataset:
        rows = [Row(Path(wanted.dataset).name, wanted.dataset, wanted.env)]
    found: list[dict[str, Any]] = []
    for row in rows:
        try:
            found += measured(row, wanted.agents, wanted.seeds, wanted.updates, wanted.out)
        except DatasetError as error:
            print(f"{row.name} is left out: {error}")
    if not found:
        sys.exit("no dataset is here: nothing was run")
    lines = [
        [f"`{one['dataset']}`", f"`{one['agent']}`", f"{one['updates']:,}", len(one["scores"]),
         f"{mean(one['scores']):.1f}", "" if one["published"] is None else f"{one['published']:.1f}"]
        for one in found
    ]  # fmt: skip
    head = ("dataset", "agent", "updates", "seeds", "score, mean", "published")
    report.save("offline", f"{report.machine()}\n\n{report.table(head, lines)}", found, None)


if __name__ == "__main__":
    main()
