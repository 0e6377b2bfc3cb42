"""Learner updates per second on the Atari network, beside the same loop written plainly in PyTorch.

    python benchmarks/agents/run.py updates --device cuda            # batch 512; eager, torch.compile, CUDA graphs
    python benchmarks/agents/run.py updates --batch 32 --updates 3   # a small form for the CPU
    python benchmarks/agents/run.py updates --device cuda --every-agent

An update begins with a batch on the device (four frames of 84×84 in uint8, twice) and ends with the priorities on the
CPU. ``plain_update.py`` is the plain loop. *compiled* compiles the networks' forward and backward passes;
*CUDA graphs* records them, too (``mode="reduce-overhead"``). ``--every-agent``: each agent trains some hundred updates
with ``apexrl train … --device``, and says how many, and how fast.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from apexrl.config import AgentConfig
from benchmarks.agents.plain_update import Plain
from benchmarks.lib import report, runs

Update = Callable[[int], Any]  # given the number of the batch to take
ACTIONS, BATCHES = 6, 4
WAYS = {"eager": None, "compiled": "default", "CUDA graphs": "reduce-overhead"}
OURS = ("dueling_dqn", "c51", "rainbow")
BESIDE = {"dueling_dqn": "plain PyTorch, double dueling DQN", "c51": "plain PyTorch, C51"}


class Batch(NamedTuple):
    """As a replay's ``sample`` gives it."""

    data: dict[str, np.ndarray[Any, Any]]
    keys: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]


def batches(rows: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(BATCHES):
        data = {
            "observation": rng.integers(0, 256, (rows, 4, 84, 84), np.uint8),
            "next_observation": rng.integers(0, 256, (rows, 4, 84, 84), np.uint8),
            "action": rng.integers(0, ACTIONS, rows),
            "reward": rng.normal(size=rows).astype(np.float32),
            "discount": np.full(rows, 0.99**3, np.float32),
        }
        made.append(Batch(data, np.arange(rows, dtype=np.uint64), rng.uniform(0.2, 1, rows).astype(np.float32)))
    return made


def configuration(name: str) -> AgentConfig:
    from apexrl import presets

    return presets.with_agent(presets.preset("pong").config, name).agent


def ours(name: str, way: str, device: str, given: list[Batch]) -> Update:
    """The agent with the settings of the preset ``pong``; ``way`` is applied to its networks from outside."""
    from apexrl.agents import agent_class
    from apexrl.spec import ActionSpec, EnvSpec, Field

    spec = EnvSpec({"observation": Field((84, 84), "uint8")}, ActionSpec(n=ACTIONS), stack=4)
    agent: Any = agent_class(name)(spec, configuration(name), device, 0)
    mode = WAYS[way]
    if mode is not None:
        for network in (agent._network.target, agent._network.network):  # the target is a copy, made when asked for
            network.compile(mode=mode)
    prepared = [agent.prepare(batch) for batch in given]

    def update(number: int) -> Any:
        if mode is not None:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return agent.update(prepared[number % BATCHES])

    return update


def plain(name: str, way: str, device: str, given: list[Batch]) -> Update:
    """The plain loop for one of ``BESIDE``, with the optimizer of the agent."""
    config = configuration(name)
    learner = Plain(ACTIONS, device, name == "c51", config.optimizer == "adam", compiled=way == "compiled")
    arrays = [batch.data | {"weights": batch.weights} for batch in given]
    prepared = [{name: torch.from_numpy(a).to(device) for name, a in each.items()} for each in arrays]
    return lambda number: learner.update(prepared[number % BATCHES])


def contestants(device: str) -> dict[str, Callable[[list[Batch]], Update]]:
    """Title -> what makes its update."""
    ways = [way for way in WAYS if way == "eager" or device.startswith("cuda")]
    made: dict[str, Callable[[list[Batch]], Update]] = {}
    for name, title in BESIDE.items():
        made |= {f"{title}, {way}": partial(plain, name, way, device) for way in ways[:2]}
    for name in OURS:
        made |= {f"{name}, {way}": partial(ours, name, way, device) for way in ways}
    return made


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
    given = batches(options.batch)
    made: dict[str, Update] = {}
    lines = []
    for name, make in contestants(options.device).items():
        try:
            update = make(given)
            rate(update, options.warm_up, options.device)
            made[name] = update
        except Exception as error:  # a way that does not work here is named, with why
            lines.append(f"Left out: {name}: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}\n")
    rates: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(options.rounds):
        for name in list(made)[:: 1 if turn % 2 == 0 else -1]:
            rates[name].append(rate(made[name], options.updates, options.device))
        print(f"round {turn + 1}: " + ", ".join(f"{name} {each[-1]:.1f}/s" for name, each in rates.items()), flush=True)
    rows = []
    for name, each in rates.items():
        peer = rates.get(f"{BESIDE.get(name.partition(',')[0])}, eager")
        beside = report.ratio(each, peer)[1] if peer else ""
        rows.append([name, report.spread(each), beside])
    text = [
        f"{where(options.device)}; {report.versions('apexrl', 'torch')}.",
        f"Batch {options.batch}, {options.updates} updates a round, {options.rounds} rounds in turn; median "
        "(least–greatest). Settings of the preset pong.\n",
        report.table(["", "updates/s", "of the plain loop, eager"], rows),
        *lines,
    ]
    report.save(f"agents-updates-{options.device.partition(':')[0]}", "\n".join(text), rates, None, options.out)


def every_agent(options: argparse.Namespace) -> None:
    """Each agent on a small environment that suits it."""
    from apexrl.agents.catalogue import AGENTS

    rows, data = [], {}
    for name, info in AGENTS.items():
        if info.item == "unroll":  # other topologies' (topologies/learning.py)
            continue
        preset = "pendulum" if "Box" in info.needs else "position-cartpole" if name == "r2d2" else "cartpole"
        flags = ["--agent", name, "--device", options.device, "--env-steps", str(options.env_steps), "--minutes", "5"]
        flags += ["--min-size", "500", "--stop-at-return", "None", "--eval-episodes", "2"]
        try:
            summary = runs.train(preset, f"agents-{options.device}-{name}", flags, 600)
        except runs.RunFailed as error:
            data[name], told = {"failure": str(error)}, ["failed", "", str(error).strip().splitlines()[-1][:160]]
        else:
            data[name] = summary
            told = [f"{summary['updates']:,}", report.short(summary["updates_per_second"]), ""]
        rows.append([f"`{name}`", preset, *told])
        print(*rows[-1], flush=True)
    text = [
        f"{where(options.device)}; {report.versions('apexrl', 'torch')}.",
        f"`apexrl train PRESET --agent NAME --device {options.device}`, {options.env_steps:,} environment steps.\n",
        report.table(["agent", "preset", "updates", "updates/s", ""], rows),
    ]
    report.save(f"agents-every-{options.device.partition(':')[0]}", "\n".join(text), data, None, options.out)


def where(device: str) -> str:
    return f"{torch.cuda.get_device_name()}; {report.machine()}" if device.startswith("cuda") else report.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda (default: cpu)")
    parser.add_argument("--batch", type=int, default=512, help="rows (default: 512)")
    parser.add_argument("--updates", type=int, default=100, help="of a round (default: 100)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--warm-up", type=int, default=10, help="updates before the first round (default: 10)")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU (default: 1)")
    parser.add_argument("--every-agent", action="store_true", help="train every agent a little, instead")
    parser.add_argument("--env-steps", type=int, default=3_000, help="of such a run (default: 3000)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("this PyTorch finds no CUDA device: use --device cpu")
    (every_agent if options.every_agent else updates)(options)
