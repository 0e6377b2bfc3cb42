"""Updates per second of SAC with a prioritized replay: sample, update, write the priorities back.

    python benchmarks/agents/run.py replay_loop --device cuda

100,000 transitions of HalfCheetah's shapes, batches of 256, one thread. Ours keeps them in shared memory and samples
into page-locked memory, as a learner does. TorchRL's buffer keeps them on the device; its ``SACLoss`` runs kernel by
kernel, as its examples do without ``torch.compile``. The plain loop of ``plain_box_update.py`` has our replay.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from apexrl.agents import agent_class
from apexrl.replay import Field, Replay
from apexrl.roles.learner import pinned
from benchmarks.agents.plain_box_update import ACTIONS, LEARNING_RATE, SIZE, TAU, PlainSAC, mlp
from benchmarks.agents.updates import BOX, configuration, rate
from benchmarks.lib import report

ROWS, BATCH, ALPHA, BETA = 100_000, 256, 0.6, 0.4
Step = Callable[[int], Any]


def rows() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        "observation": rng.normal(size=(ROWS, SIZE)).astype(np.float32),
        "next_observation": rng.normal(size=(ROWS, SIZE)).astype(np.float32),
        "action": rng.uniform(-1, 1, (ROWS, ACTIONS)).astype(np.float32),
        "reward": rng.normal(size=ROWS).astype(np.float32),
        "discount": np.full(ROWS, 0.99, np.float32),
    }


def filled(device: str) -> Replay:
    data = rows()
    fields = {name: Field(array.shape[1:], "float32") for name, array in data.items()}
    replay = Replay(ROWS, fields, alpha=ALPHA)
    with replay.writer() as writer:
        for begin in range(0, ROWS, 500):
            part = {name: array[begin : begin + 500] for name, array in data.items()}
            writer.extend(part, priorities=np.ones(len(part["reward"]), np.float32))
    if device.startswith("cuda"):
        replay.allocator = pinned
    return replay


def ours(device: str) -> Step:
    replay = filled(device)
    agent: Any = agent_class("sac")(BOX, configuration("sac"), device, 0)

    def step(number: int) -> None:
        batch = replay.sample(BATCH, beta=BETA, timeout=10.0)
        replay.update_priorities(batch.keys, agent.update(agent.prepare(batch)).priorities)

    return step


def plain(device: str) -> Step:
    replay, learner = filled(device), PlainSAC(device, compiled=False)

    def step(number: int) -> None:
        batch = replay.sample(BATCH, beta=BETA, timeout=10.0)
        arrays = {**batch.data, "weights": batch.weights}
        tensors = {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in arrays.items()}
        replay.update_priorities(batch.keys, learner.update(tensors).numpy())

    return step


def torchrl(device: str) -> Step:
    from tensordict import TensorDict
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.data import Bounded, LazyTensorStorage, TensorDictPrioritizedReplayBuffer
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import SACLoss, SoftUpdate

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp(SIZE + ACTIONS, 1)

        def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            value: torch.Tensor = self.layers(torch.cat((observation, action), -1))
            return value

    torch.manual_seed(0)
    outputs = TensorDictModule(
        nn.Sequential(mlp(SIZE, 2 * ACTIONS), NormalParamExtractor()),
        in_keys=["observation"],
        out_keys=["loc", "scale"],
    )
    bounds = Bounded(-torch.ones(ACTIONS), torch.ones(ACTIONS))
    actor = ProbabilisticActor(
        outputs, in_keys=["loc", "scale"], spec=bounds, distribution_class=TanhNormal, return_log_prob=True
    ).to(device)
    critic = ValueOperator(Critic(), in_keys=["observation", "action"]).to(device)
    loss = SACLoss(actor, critic, num_qvalue_nets=2, action_spec=bounds, delay_qvalue=True).to(device)
    loss.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss, tau=TAU)
    optimizer = torch.optim.Adam(loss.parameters(), LEARNING_RATE, fused=device.startswith("cuda"))
    data = {name: torch.from_numpy(array) for name, array in rows().items()}
    ended = torch.zeros(ROWS, 1, dtype=torch.bool)
    later = {
        "observation": data["next_observation"], "reward": data["reward"][:, None], "done": ended, "terminated": ended
    }  # fmt: skip
    given = {"observation": data["observation"], "action": data["action"], "next": TensorDict(later, [ROWS])}
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=ALPHA,
        beta=BETA,
        storage=LazyTensorStorage(ROWS, device=device),
        batch_size=BATCH,
        priority_key="td_error",
    )
    buffer.extend(TensorDict(given, [ROWS]))

    def step(number: int) -> None:
        batch = buffer.sample()
        losses = loss(batch)
        optimizer.zero_grad()
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        optimizer.step()
        target.step()
        buffer.update_tensordict_priority(batch)

    return step


CONTESTANTS = {"apexrl": ours, "our replay, plain PyTorch": plain, "TorchRL": torchrl}


def replay_loop(options: argparse.Namespace) -> None:
    """Measure all, in turn; every second round in reverse."""
    torch.set_num_threads(1)
    ready: dict[str, Step] = {}
    lines = []
    for name, make in CONTESTANTS.items():
        try:
            step = make(options.device)
            rate(step, 60, options.device)
            ready[name] = step
        except Exception as error:  # a peer that is not here, or does not load beside this PyTorch, is named with why
            lines.append(f"Left out: {name}: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}\n")
    rates: dict[str, list[float]] = {name: [] for name in ready}
    for turn in range(options.rounds):
        for name in list(ready)[:: 1 if turn % 2 == 0 else -1]:
            rates[name].append(rate(ready[name], options.updates, options.device))
    peer = rates.get("apexrl")
    table = [[name, report.spread(each), report.ratio(peer, each)[1] if peer else ""] for name, each in rates.items()]
    text = [
        f"{report.machine(options.device)}; {report.versions('apexrl', 'torch', 'torchrl')}.",
        f"{options.updates} updates a round, {options.rounds} rounds in turn; median (least–greatest).\n",
        report.table(["", "updates/s", "apexrl beside it"], table),
        *lines,
    ]
    report.save(f"agents-replay-loop-{options.device.partition(':')[0]}", "\n".join(text), rates, None, options.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda (default: cpu)")
    parser.add_argument("--updates", type=int, default=300, help="of a round (default: 300)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    replay_loop(parser.parse_args())
