"""Every topology: what it learns, how fast it is, and what a ``kill -9`` of any of its roles does.

    python benchmarks/topologies.py                             # all parts: hours
    python benchmarks/topologies.py --part cartpole             # seven topologies to 475, three seeds each
    python benchmarks/topologies.py --part cartpole --topologies seed ga3c --seeds 1
    python benchmarks/topologies.py --part rates                # steps learned from per second, same network
    python benchmarks/topologies.py --part kills                # topology × role × what became of the run
    python benchmarks/topologies.py --table                     # nothing is run: tables and pictures anew

A learning run is ``apexrl train PRESET --topology NAME --seed N --env-steps BUDGET``, as a user types it, with the
agent that the topology takes by itself unless the part names one. Each is kept in ``records/topologies/``: what is
there already, with the same settings, is not run again (unless ``--again``), and the table always holds all of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import agents_report
import processes
import runs
import topologies_kills
import topologies_rates
import topologies_report

import report
from apexrl import presets
from apexrl.agents import AGENTS
from apexrl.config import Config, convert
from apexrl.topologies import TOPOLOGIES

Record = dict[str, Any]
FEW, MANY = 200_000, 1_000_000  # environment steps: agents that replay transitions, and all others


class Run(NamedTuple):
    """A topology with an agent, and what differs from the preset's settings for it."""

    topology: str
    agent: str = ""  # empty: the one that comes with the topology
    convert: Mapping[str, Any] = {}


class Part(NamedTuple):
    """Topologies on one environment."""

    preset: str
    runs: tuple[Run, ...]
    bar: float  # the return that counts as solved
    env_steps: int = 0  # the budget of a run; 0: FEW or MANY, as the agent is
    minutes: float = 15.0  # a run that takes longer is cut, and named


PARTS: dict[str, Part] = {
    "cartpole": Part("cartpole", tuple(Run(name) for name in TOPOLOGIES), 475.0),
    "recurrent": Part(
        "position-cartpole", (Run("seed", "r2d2"), Run("impala", "impala", {"recurrent": True})), 400.0, MANY
    ),
    "lunarlander": Part(
        "lunarlander", (Run("impala", "impala"), Run("sample_factory", "appo")), 200.0, 2_000_000, 30.0
    ),
}


def configured(part: Part, which: Run) -> Config:
    """The run's settings but for seed and budget."""
    config = presets.with_topology(presets.preset(part.preset).config, which.topology, which.agent)
    return convert.override(config, which.settings)


def wishes(part: Part, which: Run, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What a run differs in from its preset, by the flat names of the settings."""
    kind = AGENTS[configured(part, which).agent.agent].item
    steps = options.env_steps or part.env_steps or (FEW if kind == "transition" else MANY)
    return {"seed": seed, "env_steps": steps, "minutes": options.minutes or part.minutes, **which.settings}


def words(which: Run, wanted: Mapping[str, Any]) -> list[str]:
    """The same for the command line."""
    flags = ["--topology", which.topology, *(["--agent", which.agent] if which.agent else [])]
    for name, value in wanted.items():
        flag = name.replace("_", "-")
        flags += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return flags


def run(name: str, which: Run, seed: int, options: argparse.Namespace) -> Record:
    """One run to its end, or how it failed."""
    part = PARTS[name]
    wanted = wishes(part, which, seed, options)
    config = convert.override(configured(part, which), wanted)
    record: Record = {
        "part": name, "topology": which.topology, "agent": config.agent.agent, "seed": seed,
        "env": str(config.env.env).rpartition(":")[2], "bar": part.bar, "budget": wanted["env_steps"],
        "settings": digest(config, options.flags), "machine": report.machine(),
        "versions": {of: report.version(of) for of in agents_report.VERSIONS},
    }  # fmt: skip
    run_name = f"topologies-{name}-{which.topology}-{seed}"
    try:
        summary = runs.train(
            part.preset, run_name, [*words(which, wanted), *options.flags], 60.0 * wanted["minutes"] + 300.0
        )
    except (runs.RunFailed, subprocess.TimeoutExpired) as error:
        return record | {"failure": str(error)[-2000:]}
    evaluations = [(row["env_steps"], row["mean"]) for row in runs.evaluations(runs.RUNS / run_name)]
    reached = [steps for steps, mean in evaluations if mean >= part.bar]
    return record | {
        "failure": "",
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
        "minutes": summary["wall_seconds"] / 60,
        "startup_seconds": summary["startup_seconds"],
        "stopped_by": summary["stopped_by"],
        "final": summary["final_eval_return"],
        "best": summary["best_eval_return"],
        "lag": summary["policy_lag"]["mean"],
        "to_bar": reached[0] if reached else None,
        "curve": evaluations,
    }


def digest(config: Config, flags: Sequence[str]) -> str:
    """A word that changes with any setting of a run."""
    return hashlib.sha256((convert.to_toml(config) + " ".join(flags)).encode()).hexdigest()[:16]


def kept(folder: Path) -> list[Record]:
    """Every run so far."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def missing(options: argparse.Namespace) -> list[tuple[str, Run, int]]:
    """What was asked for and is not there with the same settings: the first seed of all topologies first."""
    found = [] if options.again else kept(options.records)
    have = {(r["part"], r["topology"], r["seed"], r["settings"]) for r in found}
    wanted = []
    for name in [name for name in options.part if name in PARTS]:
        part = PARTS[name]
        for seed in options.seeds:
            for which in part.runs:
                if options.topologies and which.topology not in options.topologies:
                    continue
                config = convert.override(configured(part, which), wishes(part, which, seed, options))
                if (name, which.topology, seed, digest(config, options.flags)) not in have:
                    wanted.append((name, which, seed))
    return wanted


def learn(options: argparse.Namespace) -> None:
    """Run what is missing, one after the other; each is kept as soon as it has ended."""
    options.records.mkdir(parents=True, exist_ok=True)
    for name, which, seed in missing(options):
        record = run(name, which, seed, options)
        path = options.records / f"{name}-{which.topology}-{seed}.json"
        path.write_text(json.dumps(record), encoding="utf-8")
        print(f"{name} {which.topology} {record['agent']} {seed}: {agents_report.in_words(record)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*PARTS, "rates", "kills"]
    parser.add_argument("--part", nargs="+", choices=every, default=every, help="default: all")
    parser.add_argument("--topologies", nargs="+", choices=TOPOLOGIES, default=[], help="only these (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of learning runs (default: 1 2 3)")
    parser.add_argument("--env-steps", type=int, default=0, help="another budget; use other --records, too")
    parser.add_argument("--minutes", type=float, default=0.0, help="limit of one learning run (default: the part's)")
    parser.add_argument("--rounds", type=int, default=3, help="of rates, in turn (default: 3)")
    parser.add_argument("--warm-up", type=float, default=0.0, help="of rates: seconds, other than the case's")
    parser.add_argument("--window", type=float, default=0.0, help="of rates: seconds, other than the case's")
    parser.add_argument("--roles", nargs="+", default=[], help="of kills: only these (default: all that there are)")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--table", action="store_true", help="run nothing; make tables and pictures of what there is")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for tables and pictures")
    parser.add_argument("--records", type=Path, default=report.RECORDS / "topologies", help="folder for ended runs")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="all that follows goes to apexrl train")
    options = parser.parse_args()
    processes.end_in_order()
    try:
        if not options.table:
            learn(options)
    finally:
        order = {name: tuple(which.topology for which in part.runs) for name, part in PARTS.items()}
        if records := kept(options.records):
            topologies_report.write(records, order, options.out)
    if "rates" in options.part:
        topologies_rates.measure(options)
    if "kills" in options.part:
        topologies_kills.measure(options)


if __name__ == "__main__":
    main()
