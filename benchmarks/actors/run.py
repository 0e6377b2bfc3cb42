"""Do more actors learn faster? CartPole with a slow step, and with the learner's updates/s held fixed.

    python benchmarks/actors/run.py                 # 1, 4, 16 and 32 actors: some minutes
    python benchmarks/actors/run.py --step-ms 20    # a simulator four times as slow

The experiment of the article that apexrl began from: where the simulator is slow, experience is what limits learning.
Every actor steps one environment. Solved: 20 greedy episodes with a mean return of 475 or more. They are played here,
with the newest checkpoint, on CartPole without the wait (the same dynamics): at 5 ms a step one evaluation would take
50 seconds.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib import report, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOAL, EPISODES = 475.0, 20
CHECKPOINT_SECONDS = 2.0


class Result(NamedTuple):
    """One run."""

    actors: int
    env_steps_per_second: float
    updates_per_second: float
    seconds: float | None
    """To 475; None: not within the limit."""
    curve: list[tuple[float, float]]
    """Seconds and mean greedy return of every evaluation."""
    rate_seconds: float
    """Over how long the rates were taken."""


def greedy(folder: Path, checkpoint: Path, seed: int) -> float:
    """Mean return of 20 greedy episodes, one in each of 20 environments stepped together."""
    import gymnasium as gym

    import apexrl

    agent = apexrl.load(folder, str(checkpoint))
    envs = gym.make_vec("CartPole-v1", num_envs=EPISODES, vectorization_mode="vector_entry_point")
    observations, _ = envs.reset(seed=seed)
    returns, running = np.zeros(EPISODES), np.ones(EPISODES, np.bool_)
    while running.any():
        observations, rewards, terminated, truncated, _ = envs.step(agent.act(observations))
        returns += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def seconds_at(folder: Path, updates: int) -> float:
    """Wall clock since the first environment step at which the learner had made ``updates``."""
    rows = runs.statuses(folder)
    return float(np.interp(updates, [row["updates"] for row in rows], [row["wall_seconds"] for row in rows]))


def run(actors: int, options: argparse.Namespace, seed: int) -> Result:
    """Train, follow the checkpoints, stop when one is good enough."""
    name = f"{title(options)}-{actors}-{seed}"
    folder = runs.RUNS / name
    flags = ["--actors", str(actors), "--envs-per-actor", "1", "--updates-per-second", str(options.updates_per_second)]
    flags += ["--updates-per-step", "0", "--seed", str(seed), "--stop-at-return", "None"]
    flags += ["--checkpoint-seconds", str(CHECKPOINT_SECONDS), "--eval-period-seconds", "36000"]
    flags += ["--env-kwargs", "seconds", str(options.step_ms / 1000)]
    flags += ["--minutes", str(options.minutes), *options.flags]
    log = report.OUT / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            runs.command("slow-cartpole", name, flags), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            curve, solved = follow(folder, lambda: process.poll() is None, seed, options.rate_seconds)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
    if not (folder / "summary.json").is_file():
        raise runs.RunFailed(f"{name} left no summary; see {log}")
    steady = runs.rates(folder, 2.0)
    return Result(actors, steady.env_steps_per_second, steady.updates_per_second, solved, curve, steady.seconds)


def follow(
    folder: Path, running: Callable[[], bool], seed: int, rate_seconds: float
) -> tuple[list[tuple[float, float]], float | None]:
    """Play with every new checkpoint until one is good enough and the run is ``rate_seconds`` old.

    Returns seconds and mean greedy return of every evaluation, and the seconds to 475.
    """
    from apexrl.errors import SnapshotError
    from apexrl.run import checkpoint as checkpoints

    curve: list[tuple[float, float]] = []
    solved: float | None = None
    seen = -1
    enough = 0.0
    while running():
        time.sleep(0.1)
        try:
            newest = checkpoints.load_latest(folder / "checkpoints")
        except (SnapshotError, FileNotFoundError):
            continue  # pruned while it was being read
        if newest is None or newest.metadata["updates"] <= seen:
            if solved is not None and time.monotonic() > enough:
                break
            continue
        seen = newest.metadata["updates"]
        at = seconds_at(folder, seen)
        if solved is None:
            mean = greedy(folder, newest.path, 1000 * seed + len(curve))
            curve.append((at, mean))
            if mean >= GOAL:
                solved = at
                enough = time.monotonic() + max(0.0, rate_seconds - at)  # enough for steady rates
    return curve, solved


def earlier_runs(path: Path) -> dict[int, list[Result]]:
    """What an earlier call measured."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {int(actors): [Result(**result) for result in each] for actors, each in stored.items()}


def title(options: argparse.Namespace) -> str:
    """Of the files that are written."""
    return "actors" if options.step_ms == 5 else f"actors-{options.step_ms:g}ms"


def as_table(results: dict[int, list[Result]], minutes: float, step_ms: float) -> str:
    single = median(result.env_steps_per_second for result in results[min(results)]) / min(results)
    rows = []
    for actors, each in results.items():
        steps = [result.env_steps_per_second for result in each]
        seconds = [60 * minutes if result.seconds is None else result.seconds for result in each]
        solved = sum(result.seconds is not None for result in each)
        rows.append(
            [
                actors,
                report.spread(steps),
                f"{100 * median(steps) / (actors * single):.0f} %",
                f"{100 * median(steps) * step_ms / 1000 / actors:.0f} %",
                report.spread([result.updates_per_second for result in each]),
                report.spread(seconds, " s"),
                f"{solved}/{len(each)}",
            ]
        )
    header = ["actors", "env steps/s", f"of {min(results)} actor × N", "of the simulator's own rate", "updates/s"]
    return report.table([*header, "seconds to 475", "solved"], rows)


def draw(results: dict[int, list[Result]], minutes: float) -> Figure:
    """Throughput against linear, and time to 475."""
    report.style()
    import matplotlib.pyplot as plt

    counts = list(results)
    steps = [median(result.env_steps_per_second for result in results[n]) for n in counts]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.2), layout="constrained")
    linear = [steps[0] / counts[0] * n for n in counts]
    left.plot(counts, linear, "--", color=report.FAINT, label="linear")
    left.plot(counts, steps, "o-", color=report.OURS, label="apexrl")
    for n, rate, ideal in list(zip(counts, steps, linear, strict=True))[1:]:
        left.annotate(
            f"{100 * rate / ideal:.0f} %", (n, rate), xytext=(2, -14), textcoords="offset points", color=report.OURS
        )
    left.set(xscale="log", yscale="log", xlabel="actors", ylabel="env steps/s", title="Experience")
    left.set_yticks(linear, [report.short(rate) for rate in linear])
    left.margins(0.12)
    left.legend()
    for each in results.values():
        for result in each:
            solved = result.seconds is not None
            right.plot(
                result.actors,
                result.seconds if solved else 60 * minutes,
                "o" if solved else "^",
                color=report.OURS,
                alpha=0.45,
                markeredgewidth=0,
                markersize=7,
            )
    middles = [median(60 * minutes if r.seconds is None else r.seconds for r in results[n]) for n in counts]
    right.plot(counts, middles, "-", color=report.OURS)
    right.set(xscale="log", xlabel="actors", ylabel="seconds", title="Time to a greedy return of 475")
    right.set_ylim(0, 1.1 * max(middles))
    for axis in (left, right):
        axis.set_xticks(counts, [str(n) for n in counts])
        axis.minorticks_off()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--step-ms", type=float, default=5.0, help="of the simulator (default: the preset's 5)")
    parser.add_argument("--updates-per-second", type=float, default=800.0, help="of the learner (default: 800)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="a run of each (default: 1)")
    parser.add_argument("--minutes", type=float, default=4.0, help="limit of one run (default: 4)")
    parser.add_argument("--rate-seconds", type=float, default=20.0, help="least seconds of a run, for its rates")
    parser.add_argument("--add", action="store_true", help="to the runs of the last figures, instead of anew")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="all that follows goes to apexrl train")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table, figures and picture")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run is stopped too

    earlier = earlier_runs(options.out / f"{title(options)}.json") if options.add else {}
    results = {n: earlier.get(n, []) for n in sorted({*options.actors, *earlier})}
    for seed in options.seeds:
        for actors in sorted(options.actors):
            result = run(actors, options, seed)
            results[actors].append(result)
            when = "not solved" if result.seconds is None else f"solved after {result.seconds:.1f} s"
            print(
                f"seed {seed}, {actors} actors: {result.env_steps_per_second:.0f} env steps/s, "
                f"{result.updates_per_second:.0f} updates/s, {when}",
                flush=True,
            )
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'torch', 'gymnasium')}.",
        f"slow-cartpole ({options.step_ms:g} ms a step), one environment an actor, learner held to "
        f"{options.updates_per_second:g} updates/s; {max(map(len, results.values()))} runs each, median "
        f"(least–greatest). {' '.join(options.flags)}\n",
        as_table(results, options.minutes, options.step_ms),
    ]
    data = {actors: [result._asdict() for result in each] for actors, each in results.items()}
    report.save(title(options), "\n".join(lines), data, draw(results, options.minutes), options.out)


if __name__ == "__main__":
    main()
