"""Wall time beside Stable-Baselines3 and sb3-contrib: the same updates from the same environment steps, run in turn.

    python benchmarks/agents/run.py sb3                              # six cases, three rounds: an hour or more
    python benchmarks/agents/run.py sb3 --cases sac-pendulum --rounds 1  # this case again; the others stay in the table
    python benchmarks/agents/run.py sb3 --quick                      # does it work? a tenth of the steps, one round

Both have the same network, batch, step size, discount, one-step returns and uniform replay, and make one update for as
many environment steps. Time counts from the first environment step to the last update; with start-up it stands beside.
Ours steps environments while it learns, in another process; the peer does one after the other, as it is made to. Each
is first tried with one and with two threads of PyTorch, and then runs with what was faster. The score is the mean of
20 greedy episodes on fresh seeds, the same for both, with the last weights. A round whose counts differ by more than
3 % is refused.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lib import report, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]
EPISODES, BAR, TOLERANCE = 20, 0.6, 0.03
DRIFT = 0.01  # of all updates: how far ours may be from its proportion at any time


@dataclass(frozen=True)
class Case:
    """One agent on one environment, as both have it."""

    agent: str
    env: str
    env_steps: int
    min_size: int  # environment steps before the first update, at random where actions are a box
    learning_rate: float
    gamma: float = 0.99
    hidden: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    capacity: int = 1_000_000
    every_steps: int = 1  # the peer's rhythm: after so many steps …
    updates_each: int = 1  # … so many updates
    target_every_steps: int = 0  # Q-learning: the peer copies the target
    quantiles: int = 0

    def updates(self, env_steps: int) -> float:
        return (env_steps - self.min_size) * self.updates_each / self.every_steps

    def steps(self, fraction: float) -> int:
        """Environment steps for that fraction of the updates, in whole rounds of the peer's rhythm."""
        wanted = self.min_size + fraction * (self.env_steps - self.min_size)
        return math.ceil(wanted / self.every_steps) * self.every_steps


# rl-zoo: DLR-RM/rl-baselines3-zoo, hyperparams/{sac,td3,dqn,qrdqn}.yml. SAC waits for 1000 steps on Pendulum, where
# rl-zoo's 100 leave no room for a limiter, and so does TD3, in place of 10k; on CartPole the first update is due after
# 1024 steps and not 1000, a multiple of 256. Pendulum is cut to 10k of its 20k steps, which are enough for both, and
# HalfCheetah to 20k of 1M, which tell the speed as well.
_CARTPOLE: dict[str, Any] = {
    "env": "CartPole-v1", "env_steps": 50_000, "min_size": 1_024, "learning_rate": 2.3e-3, "batch_size": 64,
    "capacity": 100_000, "every_steps": 256, "updates_each": 128, "target_every_steps": 10,
}  # fmt: skip
CASES: dict[str, Case] = {
    "sac-pendulum": Case("sac", "Pendulum-v1", 10_000, 1_000, 1e-3),
    "td3-pendulum": Case("td3", "Pendulum-v1", 10_000, 1_000, 1e-3, gamma=0.98, hidden=(400, 300), capacity=200_000),
    "sac-halfcheetah": Case("sac", "HalfCheetah-v5", 20_000, 10_000, 3e-4),
    "td3-halfcheetah": Case("td3", "HalfCheetah-v5", 20_000, 10_000, 1e-3, hidden=(400, 300)),
    "dqn-cartpole": Case("dqn", **_CARTPOLE),
    "qr_dqn-cartpole": Case("qr_dqn", **_CARTPOLE, quantiles=10),
}


def flags(case: Case, env_steps: int, options: argparse.Namespace) -> list[str]:
    """The case for ``apexrl train``."""
    wanted: dict[str, Any] = {
        "env": case.env, "agent": case.agent, "env_steps": env_steps, "min_size": case.min_size,
        "learning_rate": case.learning_rate, "gamma": case.gamma, "batch_size": case.batch_size,
        "capacity": case.capacity, "n_step": 1, "alpha": 0.0,
        "updates_per_step": case.updates_each / case.every_steps,
        "insert_band": DRIFT * case.updates(env_steps) / case.min_size,
        "stop_at_return": None, "eval_period_seconds": 36_000, "eval_episodes": 1, "checkpoint_seconds": 36_000,
        "actors": 1, "envs_per_actor": options.envs, "pull_period": 10, "device": "cpu",
    }  # fmt: skip
    if case.target_every_steps:  # SB3 copies before each block of updates, as its target's period is shorter than that
        wanted |= {"target_period_updates": case.updates_each, "huber": 1.0, "gradient_clip": 10.0}
    if case.quantiles:
        wanted |= {"quantiles": case.quantiles, "gradient_clip": 0.0}
    words = [word for name, value in wanted.items() for word in ("--" + name.replace("_", "-"), str(value))]
    return [*words, "--hidden", *map(str, case.hidden)]


def apexrl(name: str, env_steps: int, threads: int, seed: int, options: argparse.Namespace) -> Result:
    from apexrl.api import evaluate

    given = [*flags(CASES[name], env_steps, options), "--learner-threads", str(threads), "--seed", str(seed)]
    summary = runs.train("", f"agents-sb3-{name}-{seed}", given, options.limit)
    played = evaluate(runs.RUNS / f"agents-sb3-{name}-{seed}", EPISODES, checkpoint="latest")
    seconds = summary["wall_seconds"]
    return {
        "seconds": seconds,
        "whole_seconds": seconds + summary["startup_seconds"],
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
        "score": played.mean,
    }


def peer(name: str, env_steps: int, threads: int, seed: int, options: argparse.Namespace) -> Result:
    words = [name, "--env-steps", env_steps, "--threads", threads, "--seed", seed, "--envs", options.peer_envs]
    script = Path(__file__).with_name("sb3_run.py")
    command = [sys.executable, str(script), *map(str, words), "--started", str(time.monotonic())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=options.limit, check=True)
    result: Result = json.loads(done.stdout)
    return result


Contestant = Callable[[str, int, int, int, argparse.Namespace], Result]
CONTESTANTS: dict[str, Contestant] = {"apexrl": apexrl, "SB3": peer}


def fastest(name: str, options: argparse.Namespace) -> dict[str, int]:
    """Threads of each contestant, by a run of a tenth of the updates with each number."""
    if len(options.threads) == 1:
        return dict.fromkeys(CONTESTANTS, options.threads[0])
    steps = CASES[name].steps(0.1)
    best = {}
    for who, contestant in CONTESTANTS.items():
        tried = {threads: contestant(name, steps, threads, 0, options)["seconds"] for threads in options.threads}
        best[who] = min(tried, key=lambda threads: tried[threads])
        told = ", ".join(f"{threads}: {seconds:.1f} s" for threads, seconds in tried.items())
        print(f"{name}: {who}, threads {told}", flush=True)
    return best


def check(name: str, results: dict[str, Result]) -> None:
    """Refuse a round in which the contestants did not do the same.

    Raises:
        SystemExit: environment steps or updates differ by more than 3 %.
    """
    for what in ("env_steps", "updates"):
        each = {who: result[what] for who, result in results.items()}
        if max(each.values()) > (1 + TOLERANCE) * min(each.values()):
            raise SystemExit(f"{name}: {what} {each} differ by more than {TOLERANCE:.0%}: not the same work")


def rounds(name: str, options: argparse.Namespace) -> tuple[dict[str, int], dict[str, list[Result]]]:
    """All rounds of a case, every second one in reverse."""
    threads = fastest(name, options)
    results: dict[str, list[Result]] = {who: [] for who in CONTESTANTS}
    for turn in range(options.rounds):
        this: dict[str, Result] = {}
        for who in list(CONTESTANTS)[:: 1 if turn % 2 == 0 else -1]:
            this[who] = CONTESTANTS[who](name, options.steps[name], threads[who], turn + 1, options)
            r = this[who]
            print(
                f"{name}, round {turn + 1}: {who} {r['seconds']:.1f} s ({r['whole_seconds']:.1f} with start-up), "
                f"{r['env_steps']:,} steps, {r['updates']:,} updates, score {r['score']:.1f}",
                flush=True,
            )
        check(name, this)
        for who, result in this.items():
            results[who].append(result)
    return threads, results


def rows(name: str, threads: dict[str, int], results: dict[str, list[Result]]) -> list[list[str]]:
    def column(who: str, what: str) -> list[float]:
        return [result[what] for result in results[who]]

    ours, theirs = CONTESTANTS
    lines = [
        [
            name,
            f"{who}, {threads[who]} thread{'s' if threads[who] > 1 else ''}",
            *(report.spread(column(who, what)) for what in ("seconds", "whole_seconds")),
            *(f"{min(column(who, what)):,}–{max(column(who, what)):,}" for what in ("env_steps", "updates")),
            ", ".join(f"{score:.1f}" for score in column(who, "score")),
        ]
        for who in CONTESTANTS
    ]
    value, text = report.ratio(column(ours, "seconds"), column(theirs, "seconds"))
    _, whole = report.ratio(column(ours, "whole_seconds"), column(theirs, "whole_seconds"))
    met = f"≤ {BAR}×: {'met' if value <= BAR else 'missed'}"
    return [*lines, [name, "apexrl / SB3", text, whole, "", "", met]]


def draw(results: dict[str, dict[str, list[Result]]]) -> Figure:
    """The ratio of every round, a dot; the bar, a line."""
    report.style()
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 0.9 + 0.4 * len(results)), layout="constrained")
    for place, each in enumerate(results.values()):
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(each["apexrl"], each["SB3"], strict=True)]
        axis.plot(ratios, [place] * len(ratios), "o", color=report.OURS, alpha=0.6, markersize=7, markeredgewidth=0)
    axis.axvline(1.0, color=report.THEIRS, linewidth=1.5)
    axis.axvline(BAR, color=report.FAINT, linewidth=1, linestyle="--")
    axis.set_yticks(range(len(results)), list(results))
    axis.set(ylim=(len(results) - 0.5, -0.5), xlabel="wall time, as a fraction of the peer's; a dot a round")
    axis.set_xlim(left=0)
    axis.set_title("The same updates from the same steps, beside SB3 (1) and the bar (dashed)")
    axis.grid(axis="y", visible=False)
    return figure


def kept(path: Path) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, list[Result]]]]:
    """Threads and results of the cases that were run before: a table always holds all there is."""
    found = json.loads(path.read_text()) if path.exists() else {"threads": {}, "results": {}}
    return found["threads"], found["results"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turn (default: 3)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of PyTorch, to try (default: 1 2)")
    parser.add_argument("--envs", type=int, default=8, help="environments of apexrl's one actor (default: 8)")
    parser.add_argument("--peer-envs", type=int, default=1, help="environments of SB3 (default: 1, as rl-zoo has it)")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for one run (default: 3600)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, one round: does it work?")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table, figures and picture")
    options = parser.parse_args(argv)
    if not (report.version("stable-baselines3") and report.version("sb3-contrib")):
        raise SystemExit("nothing to compare with: pip install stable-baselines3 sb3-contrib")
    if options.quick:
        options.rounds, options.threads = 1, options.threads[:1]
    options.steps = {name: case.steps(0.1 if options.quick else 1.0) for name, case in CASES.items()}

    title = "agents-sb3-quick" if options.quick else "agents-sb3"
    threads, results = kept(options.out / f"{title}.json")
    for name in options.cases:
        threads[name], results[name] = rounds(name, options)
    results = {name: results[name] for name in CASES if name in results}
    header = ["", "", "seconds of training", "with start-up", "env steps", "updates", "score of each round"]
    lines = [
        f"{report.machine()}; "
        f"{report.versions('apexrl', 'stable-baselines3', 'sb3-contrib', 'torch', 'gymnasium', 'mujoco')}.",
        f"Rounds in turn, seeds 1, 2, …; {options.envs} environments in one actor process of apexrl, "
        f"{options.peer_envs} in SB3; median (least–greatest).\n",
        report.table(header, [row for name in results for row in rows(name, threads[name], results[name])]),
    ]
    lines.append(f"![Wall time beside Stable-Baselines3](images/{title}.png)\n")
    report.save(title, "\n".join(lines), {"threads": threads, "results": results}, draw(results), options.out)
