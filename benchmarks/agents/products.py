"""How long does an update take with MKL's matrix products, and how long with oneDNN's, which learners choose on AMD?

    python benchmarks/agents/run.py products                     # HalfCheetah's shapes and CartPole's, one thread
    python benchmarks/agents/run.py products --cases td3 sac --rounds 50

CPU time of the thread, so that other work beside it matters less than it does to wall time; both libraries in turn
within a round. Operations are counted by ``torch.utils.flop_counter``: those of matrix products. The peak is oneDNN's
rate for a product of two matrices of 1024², in the same rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from apexrl import presets
from apexrl.agents import agent_class, matrix_products
from apexrl.launch.worker_process import keep_memory
from apexrl.spec import ActionSpec, EnvSpec, Field
from benchmarks.agents.updates import Batch
from benchmarks.lib import report

LIBRARIES = {"MKL": "highest", "oneDNN": "medium"}
SIDE = 1_024


class Case(NamedTuple):
    """An agent's update, policy and critics of the same units; the environment's shapes are HalfCheetah's, and
    CartPole's where actions are ``discrete``."""

    agent: str
    hidden: tuple[int, ...]
    batch: int = 256
    discrete: bool = False


CASES = {
    "td3": Case("td3", (400, 300)),
    "sac": Case("sac", (256, 256)),
    "ddpg": Case("ddpg", (256, 256)),
    "crossq": Case("crossq", (256, 256)),
    "sac-128": Case("sac", (128, 128)),
    "sac-64": Case("sac", (64, 64)),
    "dqn": Case("dqn", (256, 256), 64, discrete=True),
    "dqn-512": Case("dqn", (128, 128), 512, discrete=True),
}


def prepared(case: Case) -> tuple[Any, Callable[[], object]]:
    """The agent, and its update on one batch."""
    one = np.ones(6, np.float32)
    size, action = (4, ActionSpec(n=2)) if case.discrete else (17, ActionSpec((6,), "float32", low=-one, high=one))
    spec = EnvSpec({"observation": Field((size,), "float32")}, action)
    config = presets.with_agent(presets.preset("cartpole" if case.discrete else "pendulum").config, case.agent).agent
    agent: Any = agent_class(case.agent)(spec, replace(config, hidden=case.hidden, critic_hidden=()), "cpu", 0)
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, 2, case.batch) if case.discrete else rng.uniform(-1, 1, (case.batch, 6))
    data = {
        "observation": rng.normal(size=(case.batch, size)).astype(np.float32),
        "next_observation": rng.normal(size=(case.batch, size)).astype(np.float32),
        "action": chosen if case.discrete else chosen.astype(np.float32),
        "reward": rng.normal(size=case.batch).astype(np.float32),
        "discount": np.full(case.batch, 0.99, np.float32),
    }
    batch = Batch(data, np.arange(case.batch, dtype=np.uint64), np.ones(case.batch, np.float32))
    return agent, lambda: agent.update(agent.prepare(batch))


def seconds(run: Callable[[], object], count: int) -> float:
    """CPU time of this thread for one run, the mean over ``count``."""
    began = time.thread_time()
    for _ in range(count):
        run()
    return (time.thread_time() - began) / count


def measured(run: Callable[[], object], count: int, rounds: int) -> dict[str, list[float]]:
    """Library -> seconds of every round."""
    taken: dict[str, list[float]] = {name: [] for name in LIBRARIES}
    for turn in range(rounds + 1):
        for name in list(LIBRARIES)[:: 1 if turn % 2 == 0 else -1]:
            torch.set_float32_matmul_precision(LIBRARIES[name])
            taken[name].append(seconds(run, count))
    return {name: each[1:] for name, each in taken.items()}  # the first round warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument("--rounds", type=int, default=30, help="(default: 30)")
    parser.add_argument("--updates", type=int, default=6, help="of a round, with each library (default: 6)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    rates = {name: 2.0 * SIDE**3 / median(each) for name, each in measured(lambda: a @ b, 2, options.rounds).items()}
    peak = max(rates.values())
    rows, data = [], {}
    for name in options.cases:
        case = CASES[name]
        agent, update = prepared(case)
        count = options.updates
        with FlopCounterMode(display=False) as counted:
            for _ in range(count):
                update()
        flop = counted.get_total_flops() / count
        taken = data[name] = measured(update, count, options.rounds)
        chosen = "oneDNN" if matrix_products.choose_products(agent.weights(), case.batch) else "MKL"
        rows.append(
            [
                f"`{case.agent}`, {'-'.join(map(str, case.hidden))}, batch {case.batch}",
                f"{flop / 1e9:.3g}",
                *(report.spread([1000 * each for each in taken[library]]) for library in LIBRARIES),
                report.ratio(taken["oneDNN"], taken["MKL"])[1],
                f"{1000 * flop / peak:.2f} ms, {flop / peak / median(taken['oneDNN']):.0%}",
                chosen,
            ]
        )
        print(*rows[-1], flush=True)
    header = [
        "update",
        "GFLOP",
        "ms, MKL",
        "ms, oneDNN",
        "oneDNN / MKL",
        "its products at the peak",
        "learner's choice",
    ]
    text = [
        f"{report.machine()}; {report.versions('apexrl', 'torch')}.",
        f"CPU time, one thread, {options.rounds} rounds in turn; median (least–greatest). Product of {SIDE}² matrices: "
        + ", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in rates.items())
        + ".\n",
        report.table(header, rows),
    ]
    report.save("agents-products", "\n".join(text), {"peaks": rates, "seconds": data}, None, options.out)


if __name__ == "__main__":
    main()
