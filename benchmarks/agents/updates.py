"""Learner updates per second, beside the same loop written plainly in PyTorch.

    python benchmarks/agents/run.py updates --device cuda                      # every workload
    python benchmarks/agents/run.py updates --workloads atari --batch 32 --updates 3   # a small form for the CPU
    python benchmarks/agents/run.py updates --device cuda --every-agent

An update begins with a batch on the device and ends with the priorities on the CPU. Workloads: ``atari``, four frames
of 84×84 in uint8, twice, in batches of 512; ``halfcheetah``, 17 numbers and 6 actions, 256; ``unrolls``, 32 of 20 steps
of Atari, as IMPALA has them; ``sequences``, 64 of 40 + 80 steps of Atari, as R2D2 has them. ``plain_update.py`` and
``plain_box_update.py`` are the plain loops. On a GPU the agents replay CUDA graphs; *by kernels* is without them, and
*compiled* compiles the networks' passes in their place. ``--every-agent``: each agent trains some hundred updates with
``apexrl train … --device``, and says how many, and how fast.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from apexrl.agents import agent_class, with_agent
from apexrl.agents.cuda_graphs import is_recordable
from apexrl.config import AgentConfig, Config
from apexrl.spec import ActionSpec, EnvSpec, Field
from benchmarks.agents import plain_box_update
from benchmarks.agents.plain_update import Plain
from benchmarks.lib import report, runs

Arrays = dict[str, np.ndarray[Any, Any]]
Update = Callable[[int], Any]  # given the number of the batch to take
ACTIONS, BATCHES = 6, 4
COMPILED = {"compiled": "default", "compiled into graphs": "reduce-overhead"}
ATARI = EnvSpec({"observation": Field((84, 84), "uint8")}, ActionSpec(n=ACTIONS), stack=4)
LIMIT = np.ones(plain_box_update.ACTIONS, np.float32)
BOX = EnvSpec(
    {"observation": Field((plain_box_update.SIZE,), "float32")},
    ActionSpec(LIMIT.shape, "float32", low=-LIMIT, high=LIMIT),
)


class Batch(NamedTuple):
    """As a replay's ``sample`` gives it."""

    data: Arrays
    keys: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]


def made(data: Callable[[np.random.Generator], Arrays], rows: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    return [
        Batch(data(rng), np.arange(rows, dtype=np.uint64), rng.uniform(0.2, 1, rows).astype(np.float32))
        for _ in range(BATCHES)
    ]


def rewards(rng: np.random.Generator, *shape: int, discount: float = 0.99) -> Arrays:
    return {"reward": rng.normal(size=shape).astype(np.float32), "discount": np.full(shape, discount, np.float32)}


def batches(rows: int) -> list[Batch]:
    """Of Atari."""

    def data(rng: np.random.Generator) -> Arrays:
        names = ("observation", "next_observation")
        seen = {name: rng.integers(0, 256, (rows, 4, 84, 84), np.uint8) for name in names}
        return {**seen, "action": rng.integers(0, ACTIONS, rows), **rewards(rng, rows, discount=0.99**3)}

    return made(data, rows)


def box_batches(rows: int) -> list[Batch]:
    """Of HalfCheetah."""

    def data(rng: np.random.Generator) -> Arrays:
        names = ("observation", "next_observation")
        seen = {name: rng.normal(size=(rows, plain_box_update.SIZE)).astype(np.float32) for name in names}
        action = rng.uniform(-1, 1, (rows, plain_box_update.ACTIONS)).astype(np.float32)
        return {**seen, "action": action, **rewards(rng, rows)}

    return made(data, rows)


def steps(rows: int, length: int, **more: Any) -> list[Batch]:
    """Of so many steps of Atari in a row, none of which ends an episode."""

    def data(rng: np.random.Generator) -> Arrays:
        return {
            "observation": rng.integers(0, 256, (rows, length + 1, 4, 84, 84), np.uint8),
            "first": np.zeros((rows, length + 1), np.bool_),
            "mask": np.ones((rows, length), np.bool_),
            "action": rng.integers(0, ACTIONS, (rows, length)),
            **rewards(rng, rows, length),
            **more,
        }

    return made(data, rows)


def configuration(name: str) -> AgentConfig:
    """Of the value agents the settings of the preset ``pong``; else those of the agent's name."""
    from apexrl import presets

    if name in ("sac", "td3", "impala", "r2d2"):
        return with_agent(Config(), name).agent
    return presets.with_agent(presets.preset("pong").config, name).agent


def ours(name: str, way: str, device: str, given: list[Batch], spec: EnvSpec = ATARI) -> Update:
    """The agent; ``way`` is applied to it from outside."""
    agent: Any = agent_class(name)(spec, configuration(name), device, 0)
    mode = COMPILED.get(way)
    if mode is not None:
        for trained in agent.networks.values():
            for network in (trained.network, *([trained.target] if trained.target_vectors() else [])):
                network.compile(mode=mode)
    if way:
        agent._graphs = None
    prepared = [agent.prepare(batch) for batch in given]

    def update(number: int) -> Any:
        if mode is not None:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return agent.update(prepared[number % BATCHES])

    return update


def plain(name: str, way: str, device: str, given: list[Batch]) -> Update:
    """The plain loop of an agent."""
    learner: Any
    if name in ("sac", "td3"):
        kind = plain_box_update.PlainSAC if name == "sac" else plain_box_update.PlainTD3
        learner = kind(device, way == "compiled")
    else:
        adam = configuration(name).optimizer == "adam"
        learner = Plain(ACTIONS, device, name == "c51", adam, compiled=way == "compiled")
    arrays = [batch.data | {"weights": batch.weights} for batch in given]
    prepared = [{name: torch.from_numpy(a).to(device) for name, a in each.items()} for each in arrays]
    return lambda number: learner.update(prepared[number % BATCHES])


class Workload(NamedTuple):
    """Batches, and the agents that learn from them."""

    batches: Callable[[int], list[Batch]]
    rows: int
    agents: tuple[str, ...]
    beside: tuple[str, ...]  # those of which there is a plain loop
    spec: EnvSpec = ATARI


def sequences(rows: int) -> list[Batch]:
    config = configuration("r2d2")
    state = np.zeros((rows, config.recurrent_units), np.float32)
    return steps(rows, config.burn_in + config.sequence_length, lstm_h=state, lstm_c=state)


WORKLOADS = {
    "atari": Workload(batches, 512, ("dueling_dqn", "c51", "rainbow"), ("dueling_dqn", "c51")),
    "halfcheetah": Workload(box_batches, 256, ("sac", "td3"), ("sac", "td3"), BOX),
    "unrolls": Workload(lambda rows: steps(rows, configuration("impala").unroll_length), 32, ("impala",), ()),
    "sequences": Workload(sequences, 64, ("r2d2",), ()),
}


def contestants(work: Workload, device: str, compiled: bool) -> dict[str, Callable[[list[Batch]], Update]]:
    """Title -> what makes its update."""
    found: dict[str, Callable[[list[Batch]], Update]] = {}
    for name in work.agents:
        if name in work.beside:
            found[f"{name}, plain PyTorch"] = partial(plain, name, "", device)
            if compiled:
                found[f"{name}, plain PyTorch, compiled"] = partial(plain, name, "compiled", device)
        found[name] = partial(ours, name, "", device, spec=work.spec)
        if device.startswith("cuda") and is_recordable(agent_class(name)):
            found[f"{name}, by kernels"] = partial(ours, name, "by kernels", device, spec=work.spec)
        if compiled:
            for way in COMPILED:
                found[f"{name}, {way}"] = partial(ours, name, way, device, spec=work.spec)
    return found


def rate(update: Update, count: int, device: str) -> float:
    """Updates per second."""
    began = time.perf_counter()
    for number in range(count):
        update(number)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return count / (time.perf_counter() - began)


def updates(options: argparse.Namespace) -> None:
    """Measure all, in turn; every second round in reverse."""
    torch.set_num_threads(options.threads)
    lines: list[str] = []
    rows, rates = [], {}
    for workload in options.workloads:
        found = measured(WORKLOADS[workload], options, lines)
        for name, each in found.items():
            peer = found.get(f"{name.partition(',')[0]}, plain PyTorch")
            beside = report.ratio(each, peer)[1] if peer else ""
            rows.append([workload, name, report.spread(each), beside])
        rates |= {f"{workload}: {name}": each for name, each in found.items()}
    text = [
        f"{report.machine(options.device)}; {report.versions('apexrl', 'torch')}.",
        f"{options.updates} updates a round, {options.rounds} rounds in turn; median (least–greatest).\n",
        report.table(["workload", "", "updates/s", "of plain PyTorch"], rows),
        *lines,
    ]
    report.save(f"agents-updates-{options.device.partition(':')[0]}", "\n".join(text), rates, None, options.out)


def measured(work: Workload, options: argparse.Namespace, lines: list[str]) -> dict[str, list[float]]:
    """Title -> updates per second of each round; what does not run here goes into ``lines``, with why."""
    given = work.batches(options.batch or work.rows)
    ready: dict[str, Update] = {}
    for name, make in contestants(work, options.device, options.compiled).items():
        try:
            update = make(given)
            rate(update, options.warm_up, options.device)
            ready[name] = update
        except Exception as error:
            lines.append(f"Left out: {name}: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}\n")
    rates: dict[str, list[float]] = {name: [] for name in ready}
    for turn in range(options.rounds):
        for name in list(ready)[:: 1 if turn % 2 == 0 else -1]:
            rates[name].append(rate(ready[name], options.updates, options.device))
        print(f"round {turn + 1}: " + ", ".join(f"{name} {each[-1]:.1f}/s" for name, each in rates.items()), flush=True)
    return rates


def one_agent(options: argparse.Namespace, name: str) -> tuple[list[str], dict[str, Any]]:
    """A row of the table, and the summary of the run."""
    from apexrl.agents.catalogue import AGENTS

    box = "Box" in AGENTS[name].needs
    preset = "pendulum" if box else "position-cartpole" if name == "r2d2" else "cartpole"
    flags = ["--agent", name, "--device", options.device, "--env-steps", str(options.env_steps), "--minutes", "5"]
    flags += ["--min-size", "500", "--stop-at-return", "None", "--eval-episodes", "2"]
    try:
        summary = runs.train(preset, f"agents-{options.device}-{name}", flags, 600)
    except (runs.RunFailed, subprocess.TimeoutExpired) as error:
        row, summary = ["failed", "", str(error).strip().splitlines()[-1][:160]], {"failure": str(error)}
    else:
        row = [f"{summary['updates']:,}", report.short(summary["updates_per_second"]), ""]
    row = [f"`{name}`", preset, *row]
    print(*row, flush=True)
    return row, summary


def every_agent(options: argparse.Namespace) -> None:
    """Each agent on a small environment that suits it."""
    from apexrl.agents.catalogue import AGENTS

    names = [name for name, info in AGENTS.items() if info.item != "unroll"]  # those: topologies/learning.py
    with ThreadPoolExecutor(options.jobs) as pool:
        found = [*pool.map(partial(one_agent, options), names)]
    rows, data = [row for row, _ in found], dict(zip(names, (figures for _, figures in found), strict=True))
    text = [
        f"{report.machine(options.device)}; {report.versions('apexrl', 'torch')}.",
        f"`apexrl train PRESET --agent NAME --device {options.device}`, {options.env_steps:,} environment steps; "
        f"{options.jobs} at a time.\n",
        report.table(["agent", "preset", "updates", "updates/s", ""], rows),
    ]
    report.save(f"agents-every-{options.device.partition(':')[0]}", "\n".join(text), data, None, options.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda (default: cpu)")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="(default: all)")
    parser.add_argument("--batch", type=int, default=0, help="rows (default: each workload's own)")
    parser.add_argument("--compiled", action="store_true", help="torch.compile, too, which takes minutes to begin")
    parser.add_argument("--updates", type=int, default=100, help="of a round (default: 100)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--warm-up", type=int, default=60, help="updates before the first round (default: 60)")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU (default: 1)")
    parser.add_argument("--every-agent", action="store_true", help="train every agent a little, instead")
    parser.add_argument("--env-steps", type=int, default=3_000, help="of such a run (default: 3000)")
    parser.add_argument("--jobs", type=int, default=1, help="such runs at a time (default: 1)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("this PyTorch finds no CUDA device: use --device cpu")
    (every_agent if options.every_agent else updates)(options)
