"""A replay spread over 1, 2 and 4 shards on Ray: sampled as one? how fast? And Ray beside apexrl's own processes.

    python benchmarks/ray/run.py shards                            # all three parts, half an hour
    python benchmarks/ray/run.py shards --parts frequencies
    python benchmarks/ray/run.py shards --quick                    # does it work? seconds of each

| part | what is done |
| --- | --- |
| `frequencies` | Items with very uneven priorities, most of the mass at the end: on the last shard. Independent draws through Ray, counted for every item; χ² against what one replay should draw, and against what one replay did draw |
| `rates` | Writers without pause, a sampler without pause, and both at once, on rows of Atari's size |
| `launchers` | Ape-X on frames of Atari's size, on Ray and at home, in turn: steps learned from, updates and steps made, per second |

Every rate is measured in rounds, every second one in reverse.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from apexrl.launch.ray.shard_clients import ShardClient
from apexrl.replay import Field
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from benchmarks.lib import processes, report
from benchmarks.ray import shard_cluster

Result = dict[str, Any]
PARTS = ("frequencies", "rates", "launchers")
SHARDS = (1, 2, 4)
WORST = 4.0  # standard deviations of χ² above its mean
LEAST_EXPECTED = 5.0  # draws of an item, below which items are counted together
BAR = 0.8  # of home's rate
LIMIT = 600.0  # seconds of one run of a launcher
MODES = ("in alone", "out alone", "in beside out", "out beside in")


def frequencies(options: argparse.Namespace) -> list[Result]:
    """Counts of every item from each number of shards, and how far they are from one replay's."""
    rng = np.random.default_rng(3)
    priorities = rng.exponential(size=options.items) ** 2
    priorities[-options.items // 20 :] *= 20.0
    powered = (priorities + shard_cluster.EPS) ** shard_cluster.ALPHA
    draws = options.draws * options.batch
    results: list[Result] = []
    one: NDArray[np.int64] | None = None
    for shards in options.shards:
        counts = _counted(shards, priorities, options)
        if one is None:
            one = counts
        expected = draws * powered / powered.sum()
        results.append(
            {
                "shards": shards,
                "draws": int(counts.sum()),
                "against_theory": deviation(counts, expected),
                "against_one": deviation_of_two(counts, one) if counts is not one else None,
            }
        )
    return results


def _counted(shards: int, priorities: NDArray[np.float64], options: argparse.Namespace) -> NDArray[np.int64]:
    namespace, items = ray.get_runtime_context().namespace, len(priorities)
    # Names of an earlier round may still be remembered: every round has a namespace of its own.
    own = f"{namespace}-{uuid.uuid4().hex[:6]}"
    edges = np.linspace(0, items, shards + 1).astype(int)
    fields = {"number": Field((), "int64")}
    hosts = []
    for k in range(shards):
        low, high = int(edges[k]), int(edges[k + 1])
        made = {
            "capacity": max(64, high - low),
            "alpha": shard_cluster.ALPHA,
            "eps": shard_cluster.EPS,
            "seed": k,
            "writers": 1,
        }
        hosts.append(shard_cluster.host(own, k, {**made, "draws": "independent"}, fields))
        shard_cluster.asked([hosts[-1].put.remote({"number": np.arange(low, high)}, priorities[low:high])])
    ends = [ShardClient(f"shard-{k}", own) for k in range(shards)]
    replay = ShardedReplay(ends, capacity=items, min_size=items, stratified=False, ahead=shard_cluster.AHEAD, seed=5)
    counts = np.zeros(items, np.int64)
    for _ in range(options.draws):
        batch = replay.sample(options.batch, timeout=shard_cluster.LIMIT)
        counts += np.bincount(batch.data["number"], minlength=items)
    for one in hosts:
        ray.kill(one, no_restart=True)
    return counts


def deviation(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Standard deviations by which χ² lies above its mean; rare items count together."""
    rare = expected < LEAST_EXPECTED
    seen = np.append(counts[~rare], counts[rare].sum()) if rare.any() else counts
    right = np.append(expected[~rare], expected[rare].sum()) if rare.any() else expected
    freedom = len(right) - 1
    value = float(((seen - right) ** 2 / right).sum())
    return (value - freedom) / math.sqrt(2 * freedom)


def deviation_of_two(counts: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    """The same of two samples of one size, neither of which is the truth."""
    rare = counts + others < 2 * LEAST_EXPECTED
    a = np.append(counts[~rare], counts[rare].sum()) if rare.any() else counts
    b = np.append(others[~rare], others[rare].sum()) if rare.any() else others
    both = a + b
    used = both > 0
    freedom = int(used.sum()) - 1
    value = float(((a[used] - b[used]) ** 2 / both[used]).sum())
    return (value - freedom) / math.sqrt(2 * freedom)


def rates(options: argparse.Namespace) -> dict[int, list[Result]]:
    """Inserts and samples a second, each alone and both at once, for each number of shards."""
    results: dict[int, list[Result]] = {shards: [] for shards in options.shards}
    for turn in range(options.rounds):
        for shards in options.shards if turn % 2 == 0 else reversed(options.shards):
            own = f"{ray.get_runtime_context().namespace}-{uuid.uuid4().hex[:6]}"
            rig = shard_cluster.Rig(own, options.rows, options.rate_items, shards, options.writers, options.streams)
            rig.fill(options.rate_items)
            results[shards].append(_windows(rig, options))
            rig.close()
            said = ", ".join(f"{name} {report.short(value)}/s" for name, value in results[shards][-1].items())
            print(f"rates, round {turn + 1}: {shards} shards: {said}", flush=True)
    return results


def _windows(rig: shard_cluster.Rig, options: argparse.Namespace) -> Result:
    warm, seconds, batch = options.warm_up, options.seconds, options.batch

    def inserted(writing: list[Any]) -> float:
        return sum(did.done for did in shard_cluster.asked(writing, warm + seconds)) / seconds

    alone = inserted(rig.write(time.monotonic(), warm, seconds, 0.0))
    sampled = rig.learn(time.monotonic(), warm, seconds, batch, 0.0).done * batch / seconds
    begin = time.monotonic()
    writing = rig.write(begin, warm, seconds, 0.0)
    beside = rig.learn(begin, warm, seconds, batch, 0.0).done * batch / seconds
    return dict(zip(MODES, (alone, sampled, inserted(writing), beside), strict=True))


def launchers(options: argparse.Namespace) -> dict[str, list[Result]]:
    """Ape-X on frames, on Ray and at home, in turn."""
    results: dict[str, list[Result]] = {"home": [], "local": []}
    script = str(Path(__file__).with_name("apexrl_run.py"))
    for turn in range(options.rounds):
        for where in results if turn % 2 == 0 else reversed(list(results)):
            words = ["frames", "--where", where, "--seed", str(turn + 1)]
            words += ["--warm-up", str(options.launch_warm_up), "--window", str(options.launch_window)]
            result = processes.answer([sys.executable, script, *words], LIMIT, {"PYTHONWARNINGS": "ignore"})
            results[where].append(result)
            rate = report.short(result["steps_per_second"])
            print(f"launchers, round {turn + 1}: {where}: {rate} steps learned from per second", flush=True)
    return results


def text(results: Result, options: argparse.Namespace) -> str:
    """All parts that were measured."""
    parts = [f"{report.machine()}; {report.versions('apexrl', 'ray', 'numpy', 'torch')}; {report.huge_pages()}.\n"]
    if found := results.get("frequencies"):
        lines = [
            [
                one["shards"],
                f"{one['draws']:,}",
                f"{one['against_theory']:+.2f}",
                "–" if one["against_one"] is None else f"{one['against_one']:+.2f}",
                "met" if max(one["against_theory"], one["against_one"] or 0.0) < WORST else "missed",
            ]
            for one in found
        ]
        parts.append(
            f"{options.items:,} items with priorities of very different size, independent draws in batches of "
            f"{options.batch}. χ²: standard deviations above its mean, less than {WORST:g} is as from one replay.\n"
        )
        header = ["shards", "draws", "χ² against p^α/Σ", "χ² against one shard's draws", f"< {WORST:g}"]
        parts.append(report.table(header, lines))
    if found := results.get("rates"):
        parts.append(
            f"{options.rows} rows, {options.rate_items:,} items, {options.writers} writer processes with "
            f"{options.streams} streams together, batches of {options.batch}, all on this machine. Transitions "
            "a second of all shards together; median (least–greatest) of rounds in turn.\n"
        )
        lines = [
            [shards, *(report.spread([one[mode] for one in each]) for mode in MODES)] for shards, each in found.items()
        ]
        parts.append(report.table(["shards", *MODES], lines))
    if found := results.get("launchers"):
        parts.append(
            "Ape-X on frames of Atari's size (84×84, stack 4), 2 actors with 8 environments each, batches of 128, one "
            "shard; on Ray of this machine, and in apexrl's own processes.\n"
        )
        names = ("steps_per_second", "updates_per_second", "made_per_second")
        values = {where: {name: [one[name] for one in each] for name in names} for where, each in found.items()}
        titles = {"home": "own processes", "local": "on Ray"}
        lines = [[titles[where], *(report.spread(own[name]) for name in names), ""] for where, own in values.items()]
        ratios = [report.ratio(values["local"][name], values["home"][name]) for name in names]
        verdict = "met" if ratios[0][0] >= BAR else "missed"
        lines.append(["Ray / own processes", *(words for _, words in ratios), f"≥ {BAR:g}×: {verdict}"])
        header = ["", "steps learned from, per second", "updates/s", "steps made, per second", "bar"]
        parts.append(report.table(header, lines))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--shards", nargs="+", type=int, default=list(SHARDS), help="the first is what others equal")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--items", type=int, default=10_000, help="whose frequencies are counted")
    parser.add_argument("--draws", type=int, default=4000, help="batches that are counted")
    parser.add_argument("--rate-items", type=int, default=100_000)
    parser.add_argument("--launch-warm-up", type=float, default=10.0, help="seconds, of a launcher's run")
    parser.add_argument("--launch-window", type=float, default=60.0, help="seconds, of a launcher's run")
    shard_cluster.add_flags(parser, writers=4, streams=64, warm_up=2.0, seconds=15.0)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.items, options.draws, options.rows = 1, 200, 60, "small"
        options.shards, options.rate_items, options.writers, options.streams = [1, 2], 5_000, 2, 8
        options.warm_up, options.seconds, options.store_mb = 0.2, 1.0, 100
        options.launch_warm_up, options.launch_window = 2.0, 6.0
    if options.writers < max(options.shards):
        parser.error(f"--writers {options.writers} leave shards without one: take at least {max(options.shards)}")
    processes.end_in_order()
    title = "ray-shards-quick" if options.quick else "ray-shards"
    path = options.out / f"{title}.json"
    results: Result = json.loads(path.read_text()) if path.exists() else {}  # parts measured before stay in the table
    if {"frequencies", "rates"} & set(options.parts):
        with shard_cluster.cluster(options.writers + 1, options.store_mb << 20):
            if "frequencies" in options.parts:
                results["frequencies"] = frequencies(options)
            if "rates" in options.parts:
                results["rates"] = rates(options)
    if "launchers" in options.parts:
        results["launchers"] = launchers(options)
    report.save(title, text(results, options), results, None, options.out)
