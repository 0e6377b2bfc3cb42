"""Every agent on small environments: what it reaches within a budget of environment steps, seed by seed.

    python benchmarks/agents.py --part cartpole             # ten agents, three seeds each
    python benchmarks/agents.py                             # all parts: many hours
    python benchmarks/agents.py --part pendulum --agents sac td3 --seeds 1 2 --jobs 2
    python benchmarks/agents.py --table                     # nothing is run: table and pictures anew

A run is ``apexrl train PRESET --agent NAME --seed N --env-steps BUDGET``, as a user types it. It ends at the preset's
own goal or when the budget is spent. Each is kept in ``records/agents/``: what is there already, with the same
settings, is not run again (unless ``--again``), and the table always holds all of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import agents_report
import runs

import report

Record = dict[str, Any]


class Part(NamedTuple):
    """Agents on one environment."""

    preset: str
    agents: tuple[str, ...]
    env_steps: int  # the budget of a run
    bar: float | None  # the return that counts as solved
    seeds: tuple[int, ...] = (1, 2, 3)
    minutes: float = 90.0  # a run that takes longer is cut, and named


PARTS: dict[str, Part] = {
    "cartpole": Part(
        "cartpole",
        (
            "dqn", "double_dqn", "dueling_dqn", "c51", "qr_dqn", "iqn", "noisy_dqn", "rainbow", "munchausen_dqn",
            "discrete_sac",
        ),
        200_000,
        475.0,
    ),
    "position": Part("position-cartpole", ("r2d2",), 1_000_000, 400.0),
    "pendulum": Part("pendulum", ("sac", "td3", "ddpg", "bires_ddpg", "d4pg", "crossq"), 30_000, -200.0),
    "lunarlander-continuous": Part("lunarlander-continuous", ("sac", "td3"), 500_000, 200.0),
    "minatar": Part("minatar-breakout", ("rainbow",), 1_000_000, 8.0),
    "halfcheetah": Part("halfcheetah", ("sac", "td3"), 1_000_000, None, seeds=(1,), minutes=120.0),
}  # fmt: skip

# Runs of minutes, and those of hours.
TABLES = {
    "agents": ("cartpole", "position", "pendulum"),
    "agents-long": ("lunarlander-continuous", "minatar", "halfcheetah"),
}


def wishes(part: Part, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What a run differs in from its preset, by the flat names of the settings."""
    minutes, steps = options.minutes or part.minutes, options.env_steps or part.env_steps
    return {"seed": seed, "env_steps": steps, "minutes": minutes}


def settings_of(part: Part, agent: str, wanted: Mapping[str, Any], flags: Sequence[str]) -> tuple[str, str]:
    """A word that changes with any setting of a run, and its environment's name."""
    from apexrl import presets
    from apexrl.config import convert

    config = convert.override(presets.with_agent(presets.preset(part.preset).config, agent), wanted)
    text = convert.to_toml(config) + " ".join(flags)
    return hashlib.sha256(text.encode()).hexdigest()[:16], str(config.env.env).rpartition(":")[2]


def run(name: str, agent: str, seed: int, options: argparse.Namespace) -> Record:
    """One run to its end, or how it failed."""
    part = PARTS[name]
    wanted = wishes(part, seed, options)
    digest, env = settings_of(part, agent, wanted, options.flags)
    record: Record = {
        "part": name, "agent": agent, "seed": seed, "env": env, "bar": part.bar, "budget": wanted["env_steps"],
        "settings": digest, "jobs": options.jobs, "machine": report.machine(),
        "versions": {of: report.version(of) for of in agents_report.VERSIONS},
    }  # fmt: skip
    flags = ["--agent", agent]
    for setting, value in wanted.items():
        flags += ["--" + setting.replace("_", "-"), str(value)]
    run_name = f"agents-{name}-{agent}-{seed}"
    try:
        summary = runs.train(part.preset, run_name, [*flags, *options.flags], 60 * wanted["minutes"] + 900)
    except (runs.RunFailed, subprocess.TimeoutExpired) as error:
        return record | {"failure": str(error)[-2000:]}
    evaluations = [(row["env_steps"], row["mean"]) for row in runs.evaluations(runs.RUNS / run_name)]
    reached = [steps for steps, mean in evaluations if part.bar is not None and mean >= part.bar]
    return record | {
        "failure": "",
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
        "minutes": summary["wall_seconds"] / 60,
        "startup_seconds": summary["startup_seconds"],
        "stopped_by": summary["stopped_by"],
        "final": summary["final_eval_return"],
        "best": summary["best_eval_return"],
        "to_bar": reached[0] if reached else None,
        "curve": evaluations,
    }


def kept(folder: Path) -> list[Record]:
    """Every run so far."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def missing(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """What was asked for and is not there with the same settings: the first seed of all agents first."""
    have = (
        {(r["part"], r["agent"], r["seed"], r["settings"]) for r in kept(options.records)}
        if not options.again
        else set()
    )
    wanted = []
    for name in options.part:
        part = PARTS[name]
        for seed in options.seeds or part.seeds:
            for agent in [a for a in part.agents if not options.agents or a in options.agents]:
                digest, _ = settings_of(part, agent, wishes(part, seed, options), options.flags)
                if (name, agent, seed, digest) not in have:
                    wanted.append((name, agent, seed))
    return wanted


def run_all(wanted: Sequence[tuple[str, str, int]], options: argparse.Namespace) -> None:
    """Run them, ``--jobs`` at a time; each is kept as soon as it has ended."""
    folder = options.records
    folder.mkdir(parents=True, exist_ok=True)
    interrupted = threading.Event()

    def one(what: tuple[str, str, int]) -> None:
        record = run(*what, options)
        if interrupted.is_set():  # then the run was, too
            return
        path = folder / f"{'-'.join(map(str, what))}.json"
        path.write_text(json.dumps(record), encoding="utf-8")
        print(f"{' '.join(map(str, what))}: {agents_report.in_words(record)}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            for done in [pool.submit(one, what) for what in wanted]:
                done.result()
        except BaseException:
            interrupted.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--agents", nargs="+", default=[], help="only these (default: all of the part)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="default: 1 2 3; halfcheetah 1")
    parser.add_argument("--env-steps", type=int, default=0, help="another budget; use other --records, too")
    parser.add_argument("--minutes", type=float, default=0.0, help="limit of one run (default: 90; halfcheetah 120)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; their minutes are then marked as shared")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--table", action="store_true", help="run nothing; make table and pictures of what there is")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and pictures")
    parser.add_argument("--records", type=Path, default=report.RECORDS / "agents", help="folder for ended runs")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="all that follows goes to apexrl train")
    options = parser.parse_args()
    known = {agent for part in PARTS.values() for agent in part.agents}
    if unknown := [agent for agent in options.agents if agent not in known]:
        parser.error(f"no part has the agents {', '.join(unknown)}; there are {', '.join(sorted(known))}")

    try:
        if not options.table:
            run_all(missing(options), options)
    finally:
        records = kept(options.records)
        for table, parts in TABLES.items():
            found = [record for record in records if record["part"] in parts]
            if found:
                agents_report.write(table, found, {name: PARTS[name].agents for name in parts}, options.out)


if __name__ == "__main__":
    main()
