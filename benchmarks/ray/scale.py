"""Ape-X at the paper's scale, by simulation: what gives way first on this machine, and at how many times those rates?

    python benchmarks/ray/run.py scale                               # as many of the 2M items as fit; half an hour
    python benchmarks/ray/run.py scale --shards 4 --writers 4 --items 500000
    python benchmarks/ray/run.py scale --quick                       # does it work? small rows, seconds

The paper's Atari run (Horgan et al., 2018): 360 actors write 12,500 transitions a second, the learner samples 19
batches of 512 a second (9,700 transitions) from 2M items. Here writers append ready-made steps of 84x84 frames (stack
4, 3-step returns) at a multiple of that rate, and a learner samples, reads every byte and writes priorities at the same
multiple. Multiples double until a rate falls below 95 % of what it should be; then the gap is halved a few times.

Nothing is learned and nothing simulated: this is what replay, object store and memory bear. All of it is on one
machine, so that writers, shards and learner share its processors. The table names the share of each.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.lib import report
from benchmarks.ray import shard_cluster

Result = dict[str, Any]
ACTORS, INSERTS, BATCHES, BATCH, ITEMS, N_STEP = 360, 12_500.0, 19.0, 512, 2_000_000, 3  # the paper's
REACHED = 0.95
FULL = 0.9  # of a processor, or of a resource: it has no more to give
COPIES_IN, COPIES_OUT = 1, 3  # of every byte: into a slot; gathered, into the object store, joined to a batch
RESERVE = 3 << 30  # bytes of memory that are left to everybody else


def window(rig: shard_cluster.Rig, multiple: float, options: argparse.Namespace) -> Result:
    """Everything at ``multiple`` times the paper's rates for ``options.seconds``."""
    warm, seconds = options.warm_up, options.seconds
    begin = time.monotonic() + 0.5
    writing = rig.write(begin, warm, seconds, multiple * options.inserts)
    rig.learn(begin, 0.0, warm, BATCH, multiple * options.batches)
    cpu, raylet, (busy, had) = rig.cpu(), shard_cluster.raylet_cpu(), shard_cluster.machine_cpu()
    began = time.monotonic()
    learned = rig.learn(began, 0.0, seconds, BATCH, multiple * options.batches)
    elapsed = time.monotonic() - began
    after = rig.cpu()
    raylet, (busy_after, had_after) = shard_cluster.raylet_cpu() - raylet, shard_cluster.machine_cpu()
    wrote = shard_cluster.asked(writing, warm + seconds)
    inserts, batches = sum(did.done for did in wrote) / seconds, learned.done / elapsed
    moved = COPIES_IN * sum(did.bytes for did in wrote) / seconds + COPIES_OUT * learned.bytes / elapsed
    stats = rig.stats()
    return {
        "multiple": multiple,
        "inserts_per_second": inserts,
        "inserts_wanted": multiple * options.inserts,
        "batches_per_second": batches,
        "batches_wanted": multiple * options.batches,
        "bytes_in_per_second": sum(did.bytes for did in wrote) / seconds,
        "bytes_out_per_second": learned.bytes / elapsed,
        "items": sum(one["size"] for one in stats),
        "bytes_per_item": stats[0]["bytes_per_item"],
        "memory_available": shard_cluster.memory_available(),
        "cores": {
            "a shard (the busiest)": max(b - a for a, b in zip(cpu, after, strict=True)) / elapsed,
            "all shards": sum(b - a for a, b in zip(cpu, after, strict=True)) / elapsed,
            "a writer (the busiest)": max(did.cpu for did in wrote) / seconds,
            "all writers": sum(did.cpu for did in wrote) / seconds,
            "the learner": learned.cpu / elapsed,
            "the object store's process": raylet / elapsed,
        },
        "machine": (busy_after - busy) / max(1e-9, had_after - had),
        "bandwidth": moved / options.copy_rate,
    }


def reached(result: Result) -> bool:
    return bool(
        result["inserts_per_second"] >= REACHED * result["inserts_wanted"]
        and result["batches_per_second"] >= REACHED * result["batches_wanted"]
    )


def shares(result: Result, options: argparse.Namespace) -> dict[str, float]:
    """How much of each resource was used, 0 … 1: processes by the one thread of Python in each."""
    cores = result["cores"]
    return {
        "processor time of a shard": cores["a shard (the busiest)"],
        "processor time of a writer": cores["a writer (the busiest)"],
        "processor time of the learner": cores["the learner"],
        "processor time of the object store": cores["the object store's process"],
        "all processors of this machine": result["machine"],
        "memory bandwidth": result["bandwidth"],
        "room of the object store": (shard_cluster.AHEAD + 1) * BATCH * options.item_bytes_out / options.store_bytes,
        "memory": 1.0 - result["memory_available"] / options.memory_bytes,
    }


def first(result: Result, options: argparse.Namespace) -> str:
    """What gave way: the machine as a whole where nothing is left of it, else the fullest."""
    used = shares(result, options)
    if used["all processors of this machine"] >= FULL:
        return "all processors of this machine"
    name, share = max(used.items(), key=lambda pair: pair[1])
    return name if share >= FULL else f"nothing is full (the fullest: {name}); calls wait for one another"


def search(rig: shard_cluster.Rig, options: argparse.Namespace) -> list[Result]:
    """Windows at multiples that double until one is not reached, then in the gap."""
    results: list[Result] = []

    def at(multiple: float) -> bool:
        result = window(rig, multiple, options)
        results.append(result)
        print(
            f"{multiple:.3g}x: {report.short(result['inserts_per_second'])}/s in, "
            f"{result['batches_per_second']:.1f} batches/s out, machine {result['machine']:.0%}"
            f"{'' if reached(result) else ', not reached'}",
            flush=True,
        )
        return reached(result)

    low, multiple = 0.0, options.first
    while at(multiple):
        low, multiple = multiple, 2.0 * multiple
        if multiple > options.most:
            return results
    high = multiple
    for _ in range(options.refine):
        middle = (low * high) ** 0.5 if low else high / 2.0
        if at(middle):
            low = middle
        else:
            high = middle
    return sorted(results, key=lambda result: float(result["multiple"]))


def text(results: list[Result], options: argparse.Namespace) -> str:
    """The table, and below it what gave way."""
    header = ["times the paper", "in, transitions/s", "out, batches/s", "in + out, MB/s"]
    header += [*results[0]["cores"], "this machine", "memory bandwidth"]
    lines = [
        [
            f"{r['multiple']:.3g}×" + ("" if reached(r) else " ✗"),
            f"{report.short(r['inserts_per_second'])} of {report.short(r['inserts_wanted'])}",
            f"{report.short(r['batches_per_second'])} of {report.short(r['batches_wanted'])}",
            report.short((r["bytes_in_per_second"] + r["bytes_out_per_second"]) / 1e6),
            *(f"{value:.2f}" for value in r["cores"].values()),
            f"{r['machine']:.0%}",
            f"{r['bandwidth']:.0%}",
        ]
        for r in results
    ]
    good = [r for r in results if reached(r)]
    bad = [r for r in results if not reached(r)]
    items, wanted = results[-1]["items"], ITEMS * results[-1]["bytes_per_item"] / 2**30
    scaled = f"{items:,} items"
    if items < 0.9 * ITEMS:
        scaled = f"**{items:,} items, not the paper's {ITEMS:,}**, which want {wanted:.1f} GiB; rates are not scaled"
    lasting = f"{good[-1]['multiple']:.3g}×" if good else f"less than {results[0]['multiple']:.3g}×"
    ends = (
        f"First to give way, at {bad[0]['multiple']:.3g}×: **{first(bad[0], options)}**."
        if bad
        else f"Nothing gave way up to {results[-1]['multiple']:.3g}×."
    )
    return (
        f"{report.machine()}; {report.versions('apexrl', 'ray', 'numpy')}; {report.huge_pages()}.\n"
        f"{options.rows} rows, {scaled}; {options.shards} shards, {options.writers} writer processes with "
        f"{options.streams} streams together, batches of {BATCH}, {options.seconds:g} s a line. 1× is "
        f"{report.short(options.inserts)} transitions/s in and {options.batches:g} batches/s out. Columns of processes "
        f"are processors used. Memory bandwidth: bytes in, and bytes out {COPIES_OUT} times, as a share of "
        f"{options.copy_rate / 1e9:.1f} GB/s, which one process copies alone.\n\n"
        f"{report.table(header, lines)}\n"
        f"All rates were reached (≥ {REACHED:.0%}) up to **{lasting}** of the paper's. {ends}\n"
    )


def fitting(options: argparse.Namespace) -> int:
    """Items that fit into memory, at most the paper's, by the bytes of one with its stream's share of a chunk."""
    frame = shard_cluster.ROWS[options.rows]
    stack = frame.observation[0] if len(frame.observation) > 1 else 1
    one = 1.15 * frame.nbytes / (2 * stack)  # frames are stored once; chunks repeat a few
    return int(min(ITEMS, max(10_000, (shard_cluster.memory_available() - RESERVE - options.store_bytes) / one)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=0, help="default: the paper's 2M, or as many as fit into memory")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--inserts", type=float, default=INSERTS, help="transitions/s at 1x")
    parser.add_argument("--batches", type=float, default=BATCHES, help="batches/s at 1x")
    parser.add_argument("--first", type=float, default=0.5, help="multiple to begin with")
    parser.add_argument("--most", type=float, default=64.0, help="multiple to end with")
    parser.add_argument("--refine", type=int, default=3, help="times that the gap is halved")
    shard_cluster.add_flags(parser, writers=2, streams=ACTORS, warm_up=3.0, seconds=20.0)
    options = parser.parse_args()
    if options.quick:
        options.rows, options.items, options.streams, options.most, options.refine = "small", 10_000, 16, 1.0, 0
        options.warm_up, options.seconds, options.store_mb = 0.5, 1.5, 100
    options.store_bytes = options.store_mb << 20
    options.item_bytes_out = shard_cluster.ROWS[options.rows].nbytes
    options.memory_bytes = shard_cluster.memory_available()
    options.copy_rate = shard_cluster.copy_rate()
    items = options.items or fitting(options)
    with shard_cluster.cluster(options.shards + options.writers + 1, options.store_bytes) as namespace:
        rig = shard_cluster.Rig(
            namespace, options.rows, items, options.shards, options.writers, options.streams, n_step=N_STEP
        )
        print(f"filling {items:,} items", flush=True)
        rig.fill(items)
        results = search(rig, options)
        rig.close()
    title = "ray-scale-quick" if options.quick else "ray-scale"
    report.save(title, text(results, options), results, None, options.out)
