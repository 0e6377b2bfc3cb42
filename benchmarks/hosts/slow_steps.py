"""A simulator of 20 ms a step: 64 of them on four hosts, with the learner's updates/s held fixed.

    python benchmarks/hosts/run.py slow_steps              # both parts, about an hour
    python benchmarks/hosts/run.py slow_steps --part growth
    python benchmarks/hosts/run.py slow_steps --envs-per-actor 1 --growth 1 8 32 64   # a process each
    python benchmarks/hosts/run.py slow_steps --quick      # does it work?

An actor has eight environments, as where nothing else is said, and finds out that they wait: it steps them in threads.

`growth`: one run that begins with 1 actor and is joined by more, up to 8 (64 simulators): environment steps per second
as the learner's host counts them, against as many times the one actor's. `solve`: a run each with 1 and 8 actors, to
475.
Solved: as in ``actors/run.py``, 20 greedy episodes with a mean return of 475, played here with the newest checkpoint,
without the wait. The learner (with the server) and each of the four actor hosts have a network namespace of their own.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from apexrl.config import ActorConfig
from benchmarks.actors import run as one_machine
from benchmarks.lib import hosts as rig
from benchmarks.lib import report, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOSTS = 4
SETTLE_SECONDS = 5.0
START_SECONDS = 180.0  # for many actors on few cores


class Plateau(NamedTuple):
    """A stretch of the growing run."""

    actors: int
    env_steps_per_second: float
    updates_per_second: float
    seconds: float


class Solved(NamedTuple):
    """One run to 475."""

    actors: int
    seconds: float | None
    env_steps_per_second: float
    updates_per_second: float
    curve: list[tuple[float, float]]


def flags(seed: int, minutes: float, options: argparse.Namespace) -> list[str]:
    """Of the learner; ``minutes`` 0: until it is stopped."""
    given = ["--envs-per-actor", str(options.envs_per_actor), "--seed", str(seed)]
    given += ["--actor-slots", str(max(64, *options.growth))]
    given += ["--updates-per-second", str(options.updates_per_second), "--updates-per-step", "0"]
    given += ["--stop-at-return", "None", "--checkpoint-seconds", str(one_machine.CHECKPOINT_SECONDS)]
    given += ["--eval-episodes", "1", "--eval-envs", "1"]  # what counts is played here, without the wait
    given += ["--eval-period-seconds", "36000", "--env-kwargs", "seconds", str(options.step_ms / 1000)]
    return [*given, "--minutes", str(minutes), *options.flags]


def grow(places: rig.Places, learner: rig.Command, now: int, wanted: int) -> None:
    """Start actor hosts until ``wanted`` actors serve, evenly over the hosts."""
    share = [wanted // HOSTS + (host < wanted % HOSTS) for host in range(HOSTS)]
    before = [now // HOSTS + (host < now % HOSTS) for host in range(HOSTS)]
    for host in range(HOSTS):
        if share[host] > before[host]:
            places.actor(host, "--actors", str(share[host] - before[host]))
    rig.wait_for(f"{wanted} actors", lambda: working(places, learner) >= wanted, START_SECONDS)


def working(places: rig.Places, learner: rig.Command) -> int:
    """Actors of members that have made steps."""
    if not learner.running:
        raise runs.RunFailed(f"the learner has ended:\n{learner.said[-3000:]}")
    return sum(len(member.slots) for member in places.look().alive if member.digest.env_steps > 0)


def growth(options: argparse.Namespace) -> list[Plateau]:
    """One run, joined by more and more."""
    plateaus: list[Plateau] = []
    with rig.Places(options.kind, HOSTS, rig.folder("slow-growth"), options.delay_ms) as places:
        learner = places.learner("slow-cartpole", *flags(1, 0.0, options))
        now = 0
        for wanted in options.growth:
            grow(places, learner, now, wanted)
            now = wanted
            rig.wait_for("updates", lambda: rig.status(places.run_folder).get("updates", 0), START_SECONDS)
            time.sleep(SETTLE_SECONDS)
            first = rig.status(places.run_folder)
            time.sleep(options.plateau_seconds)
            last = rig.status(places.run_folder)
            seconds = last["wall_seconds"] - first["wall_seconds"]
            plateaus.append(
                Plateau(
                    wanted,
                    (last["env_steps"] - first["env_steps"]) / seconds,
                    (last["updates"] - first["updates"]) / seconds,
                    seconds,
                )
            )
            print(plateaus[-1], flush=True)
        learner.interrupt()
        learner.finish(60)
    return plateaus


def solve(actors: int, seed: int, options: argparse.Namespace) -> Solved:
    """One run to 475."""
    with rig.Places(options.kind, HOSTS, rig.folder(f"slow-{actors}-{seed}"), options.delay_ms) as places:
        learner = places.learner("slow-cartpole", *flags(seed, options.minutes, options))
        grow(places, learner, 0, actors)
        curve, seconds = one_machine.follow(places.run_folder, lambda: learner.running, seed, options.rate_seconds)
        learner.interrupt()
        learner.finish(60)
        steady = runs.rates(places.run_folder, 5.0)
    return Solved(actors, seconds, steady.env_steps_per_second, steady.updates_per_second, curve)


def growth_table(plateaus: list[Plateau], options: argparse.Namespace) -> str:
    one, each = plateaus[0].env_steps_per_second / plateaus[0].actors, options.envs_per_actor
    rows = [
        [p.actors, p.actors * each, report.short(p.env_steps_per_second),
         f"{100 * p.env_steps_per_second / (one * p.actors):.0f} %",
         f"{p.env_steps_per_second * options.step_ms / 10 / (p.actors * each):.0f} %",
         report.short(p.updates_per_second)]
        for p in plateaus
    ]  # fmt: skip
    head = ["actors", "simulators", "env steps/s", "of 1 actor × N", "of the simulators' own rate", "updates/s"]
    return report.table(head, rows)


def solve_table(results: dict[int, list[Solved]], options: argparse.Namespace) -> str:
    rows = []
    for count, each in results.items():
        seconds = [60 * options.minutes if result.seconds is None else result.seconds for result in each]
        rows.append(
            [
                count,
                report.spread(seconds, " s"),
                f"{sum(result.seconds is not None for result in each)}/{len(each)}",
                report.spread([result.env_steps_per_second for result in each]),
                report.spread([result.updates_per_second for result in each]),
            ]
        )
    return report.table(["actors", "seconds to 475", "solved", "env steps/s, start-up included", "updates/s"], rows)


def draw(plateaus: list[Plateau], results: dict[int, list[Solved]], options: argparse.Namespace) -> Figure:
    """Throughput against linear, and time to 475."""
    report.style()
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.2), layout="constrained")
    if plateaus:
        counts = [plateau.actors for plateau in plateaus]
        steps = [plateau.env_steps_per_second for plateau in plateaus]
        linear = [steps[0] / counts[0] * n for n in counts]
        left.plot(counts, linear, "--", color=report.FAINT, label="linear")
        left.plot(counts, steps, "o-", color=report.OURS, label="apexrl, one growing run")
        left.set(xscale="log", yscale="log", xlabel="actors on four hosts", ylabel="env steps/s", title="Experience")
        left.legend()
    for each in results.values():
        for result in each:
            solved = result.seconds is not None
            at = result.seconds if solved else 60 * options.minutes
            right.plot(result.actors, at, "o" if solved else "^", color=report.OURS, alpha=0.5, markeredgewidth=0)
    if results:
        middles = [
            median(60 * options.minutes if r.seconds is None else r.seconds for r in e) for e in results.values()
        ]
        right.plot(list(results), middles, "-", color=report.OURS)
        right.set(xscale="log", xlabel="actors on four hosts", ylabel="seconds", title="Time to a greedy return of 475")
        right.set_ylim(0, 1.1 * max(middles))
    for axis, ticks in ((left, [p.actors for p in plateaus]), (right, list(results))):
        axis.set_xticks(ticks, [str(n) for n in ticks])
        axis.minorticks_off()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["growth", "solve", "both"], default="both")
    parser.add_argument("--growth", type=int, nargs="+", default=[1, 2, 4, 8], help="actors, in one run")
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 8], help="a run each, to 475")
    parser.add_argument("--envs-per-actor", type=int, default=ActorConfig().envs_per_actor, help="(default: apexrl's)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of the simulator (default: 20)")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of the links, one way (default: 0)")
    parser.add_argument("--updates-per-second", type=float, default=200.0, help="of the learner (default: 200)")
    parser.add_argument("--plateau-seconds", type=float, default=20.0, help="measured at each number of actors")
    parser.add_argument("--rate-seconds", type=float, default=20.0, help="least seconds of a run to 475")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="runs to 475, of each (default: 1)")
    parser.add_argument("--minutes", type=float, default=15.0, help="limit of one run (default: 15)")
    parser.add_argument("--quick", action="store_true", help="few actors, short: only to see that it works")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table, figures and picture")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="all that follows goes to apexrl learner")
    options = parser.parse_args()
    options.kind = rig.kind()
    if options.quick:
        options.growth, options.actors, options.plateau_seconds = [1, 2], [2], 5.0
        options.minutes, options.rate_seconds = 0.5, 5.0

    name = "hosts-slow-quick" if options.quick else "hosts-slow"
    plateaus, results = earlier(options.out / f"{name}.json", options.part)
    if options.part != "solve":
        plateaus = growth(options)
    if options.part != "growth":
        results = {count: [solve(count, seed, options) for seed in options.seeds] for count in options.actors}
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'redis', 'torch', 'gymnasium')}.",
        f"slow-cartpole ({options.step_ms:g} ms a step), {options.envs_per_actor} an actor, evenly on {HOSTS} hosts, "
        f"{rig.meant(options.kind)}, learner held to {options.updates_per_second:g} updates/s. "
        f"{' '.join(options.flags)}\n",
    ]
    if plateaus:
        lines += [
            f"One run, joined by more and more; {options.plateau_seconds:g} s at each number. The bar is ≥ 90 %.\n"
        ]
        lines += [growth_table(plateaus, options)]
    if results:
        lines += ["Runs to 475, median (least–greatest).\n", solve_table(results, options)]
    data = {
        "growth": [plateau._asdict() for plateau in plateaus],
        "solve": {count: [result._asdict() for result in each] for count, each in results.items()},
    }
    report.save(name, "\n".join(lines), data, draw(plateaus, results, options), options.out)


def earlier(path: Path, part: str) -> tuple[list[Plateau], dict[int, list[Solved]]]:
    """What an earlier call measured of the other part."""
    if part == "both" or not path.is_file():
        return [], {}
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return [Plateau(**one) for one in stored["growth"]], {
        int(count): [Solved(**one) for one in each] for count, each in stored["solve"].items()
    }
