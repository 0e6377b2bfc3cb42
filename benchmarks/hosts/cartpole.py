"""CartPole over three hosts with slow links, beside one machine, run in turn.

    python benchmarks/hosts/run.py cartpole          # seeds 1 to 7, five minutes
    python benchmarks/hosts/run.py cartpole --quick  # does it work? one seed, a short limit

Both have the same actors and flags. Three hosts: learner, evaluator and the server in one network namespace, half of
the actors in each of two others, behind a relay that delays 20 ms each way. Solved: 20 greedy episodes have a mean
return of 475 or more. Wall clock runs from the first environment step to that evaluation; start-up is in the column
beside it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lib import hosts as rig
from benchmarks.lib import report, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]
GOAL = 475.0


def one_machine(seed: int, options: argparse.Namespace) -> Result:
    began = time.monotonic()
    given = ["--actors", str(options.actors), *flags(seed, options)]
    summary = runs.train("cartpole", f"hosts-one-{seed}", given, options.limit + 60)
    return summary | {"whole_seconds": time.monotonic() - began}


def hosts(seed: int, options: argparse.Namespace) -> Result:
    began = time.monotonic()
    with rig.Places(options.kind, 2, rig.folder(f"cartpole-{seed}"), options.delay_ms) as places:
        learner = places.learner("cartpole", *flags(seed, options))
        actors = [places.actor(host, "--actors", str(options.actors // 2)) for host in (0, 1)]
        code = learner.finish(options.limit + 60)
        if code:
            raise runs.RunFailed(f"the learner ended with exit code {code}:\n{learner.said[-3000:]}")
        summary = places.summary() | {"whole_seconds": time.monotonic() - began}
        ends = [actor.finish(30) for actor in actors]
        return summary | {"actor_hosts_ended": ends, "links": [link.counts() for link in places.links]}


def flags(seed: int, options: argparse.Namespace) -> list[str]:
    given = ["--seed", str(seed), "--stop-at-return", str(GOAL), "--minutes", str(options.limit / 60)]
    return [*given, "--actor-slots", str(options.actors), *options.flags]  # the ladder has as many rungs in both


CONTESTANTS = {"one machine": one_machine, "learner + 2 actor hosts": hosts}


def as_table(results: dict[str, list[Result]]) -> str:
    rows = []
    for name, each in results.items():
        rows.append(
            [
                name,
                f"{sum(solved(result) for result in each)}/{len(each)}",
                report.spread([result["wall_seconds"] for result in each], " s"),
                report.spread([result["whole_seconds"] for result in each], " s"),
                report.spread([result["env_steps"] for result in each]),
                report.spread([result["env_steps_per_second"] for result in each]),
                report.spread([result["updates_per_second"] for result in each]),
                report.spread([result["final_eval_return"] for result in each]),
            ]
        )
    header = ["", "solved", "seconds to 475", "from command to exit", "env steps", "env steps/s", "updates/s"]
    return report.table([*header, "final return, fresh seeds"], rows)


def solved(result: Result) -> bool:
    return bool(result["stopped_by"] == "stop_at_return")


def draw(results: dict[str, list[Result]]) -> Figure:
    """A line for each seed, from one machine to many."""
    report.style()
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(4.5, 3.0), layout="constrained")
    one, many = ([result["wall_seconds"] for result in results[name]] for name in CONTESTANTS)
    for before, after in zip(one, many, strict=True):
        axis.plot([0, 1], [before, after], "o-", color=report.OURS, alpha=0.6)
    axis.set_xticks([0, 1], list(CONTESTANTS))
    axis.set(xlim=(-0.3, 1.3), ylabel="seconds to a greedy return of 475", title="CartPole-v1, a line a seed")
    axis.set_ylim(bottom=0)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 7])
    parser.add_argument("--actors", type=int, default=2, help="of the whole run (default: the preset's 2)")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="of the links, one way (default: 20)")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one run (default: 120)")
    parser.add_argument("--quick", action="store_true", help="one seed, 10 seconds: only to see that it works")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table, figures and picture")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="all that follows goes to apexrl")
    options = parser.parse_args()
    options.kind = rig.kind()
    if options.quick:
        options.seeds, options.limit = options.seeds[:1], 10.0

    results: dict[str, list[Result]] = {name: [] for name in CONTESTANTS}
    for number, seed in enumerate(options.seeds):
        for name in list(CONTESTANTS)[:: 1 if number % 2 == 0 else -1]:
            result = CONTESTANTS[name](seed, options)
            results[name].append(result)
            print(f"seed {seed}: {name} {result['wall_seconds']:.1f} s ({result['stopped_by']})", flush=True)
    one, many = ([result["wall_seconds"] for result in results[name]] for name in CONTESTANTS)
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'redis', 'torch', 'gymnasium')}.",
        f"Seeds {', '.join(map(str, options.seeds))}, in turn; {options.actors} actors, {rig.meant(options.kind)}, "
        f"links of {options.delay_ms:g} ms each way; median (least–greatest). {' '.join(options.flags)}\n",
        as_table(results),
        f"Wall time of three hosts / one machine: {report.ratio(many, one)[1]}; the bar is ≤ 1.5×.\n",
    ]
    name = "hosts-cartpole-quick" if options.quick else "hosts-cartpole"
    report.save(name, "\n".join(lines), results, draw(results), options.out)
