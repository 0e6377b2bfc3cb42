"""Does a sweep that is killed three times end with all its trials, and with settings as good as the preset's?

    python benchmarks/sweep/run.py                  # 30 trials of CartPole, and two times five runs; half an hour
    python benchmarks/sweep/run.py --seeds 1        # one run a trial: luck chooses as much as settings do

``apexrl sweep cartpole --objective area`` is killed with SIGKILL after a sixth, a half and five sixths of the trials
have begun, each time in the middle of a trial that has a checkpoint: first the sweep, then the sweep and the trial,
then the trial alone. The same command goes on. Then the preset's settings and the best trial's are trained with fresh
seeds and as many environment steps. What counts there is what the sweep searched: the mean height of the curve.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from apexrl.config import StopConfig
from apexrl.sweep.curve import CurveReader, height
from apexrl.sweep.plan import Plan
from apexrl.sweep.study import Study
from benchmarks.lib import report, runs

Result = dict[str, Any]
KILLS = ((1 / 6, True, False), (1 / 2, True, True), (5 / 6, False, True))  # share begun; kill the sweep, the trial
PATIENCE = 1800.0  # seconds for a trial to begin
FRESH = range(101, 106)


def sweep(folder: Path, options: argparse.Namespace) -> list[str]:
    """Run it to its end; returns what was killed, in words."""
    command = [sys.executable, "-m", "apexrl.cli", "sweep", "cartpole", "--study", str(folder), "--objective", "area"]
    command += ["--trials", str(options.trials), "--seeds", str(options.seeds)]
    command += ["--env-steps", str(options.env_steps), "--checkpoint-seconds", "2"]
    process = subprocess.Popen(command)
    killed = []
    for share, its_sweep, its_trial in KILLS:
        run = running_trial(folder, max(1, round(share * options.trials)) - 1)
        victims = [process.pid] * its_sweep + [holder(run)] * its_trial
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        killed.append(f"{' and '.join(['the sweep'] * its_sweep + ['the trial'] * its_trial)} in {run.name}")
        print(f"killed: {killed[-1]}", flush=True)
        if its_sweep:
            process.wait()
            process = subprocess.Popen(command)
    if process.wait():
        raise SystemExit(f"the sweep ended with exit code {process.returncode}")
    return killed


def running_trial(folder: Path, least: int) -> Path:
    """The run folder of a trial, number ``least`` or later, that is trained and has a checkpoint."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for run in folder.glob("trial-*"):
            begun = int(run.name.split("-")[1]) >= least and not (run / "summary.json").exists()
            if begun and list((run / "checkpoints").glob("generation-*.safetensors")):
                return run
        time.sleep(0.02)
    raise SystemExit(f"no trial from {least} on had a checkpoint within {PATIENCE:g} s")


def holder(run: Path) -> int:
    """The process that trains the run."""
    return int(json.loads((run / "lock").read_text(encoding="utf-8"))["pid"])


def trained(start: str, name: str, seed: int, env_steps: int) -> Result:
    """A run with a fresh seed; ``area`` is the mean height of its curve."""
    flags = ["--seed", str(seed), "--env-steps", str(env_steps)]
    summary = runs.train(start, f"{name}-{seed}", flags, 600)
    curve = CurveReader(runs.RUNS / f"{name}-{seed}" / "metrics.jsonl", StopConfig(env_steps=env_steps))
    curve.read()
    return summary | {"area": height(curve.points, "area")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3, help="runs of a trial, whose mean counts (default: 3)")
    parser.add_argument("--env-steps", type=int, default=40_000, help="of each run (default: 40000)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()

    folder = report.OUT / "sweep-cartpole"
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    killed = sweep(folder, options)
    minutes = (time.monotonic() - began) / 60
    trials = Study(folder, Plan.read(folder)).trials
    states = [trial.state.name.lower() for trial in trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    print(f"{len(trials)} trials: {counts}", flush=True)

    results: dict[str, list[Result]] = {"preset": [], "best trial": []}
    for seed in FRESH:
        for name, start in (("preset", "cartpole"), ("best trial", str(folder / "best.toml"))):
            result = trained(start, f"sweep-{name.replace(' ', '-')}", seed, options.env_steps)
            results[name].append(result)
            print(f"seed {seed}: {name} {result['area']:.1f}, final {result['final_eval_return']:.1f}", flush=True)
    rows = [
        [name, report.spread([one["area"] for one in each]), report.spread([one["final_eval_return"] for one in each])]
        for name, each in results.items()
    ]
    areas = {name: mean(one["area"] for one in each) for name, each in results.items()}
    whole = len(trials) == options.trials and not {"running", "waiting"} & set(states)
    verdict = "passed" if whole and areas["best trial"] >= areas["preset"] else "FAILED"
    told = f"{len(trials)} trials of {options.trials} ({counts}), up to {options.seeds} runs each"
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'optuna', 'torch', 'gymnasium')}.",
        f"{told}, in {minutes:.0f} minutes. Killed: {'; '.join(killed)}.",
        f"Five fresh seeds, {options.env_steps:,} steps each: {verdict}.",
        report.table(["settings", "mean height of the curve", "final return, fresh seeds"], rows),
    ]
    report.save("sweep-cartpole", "\n\n".join(lines), {"killed": killed, "runs": results}, None, options.out)
    sys.exit(verdict != "passed")


if __name__ == "__main__":
    main()
