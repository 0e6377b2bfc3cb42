"""Which share of the processor's peak does each layer of the Atari network reach, and the whole update?

    python benchmarks/agents/run.py layers                       # batch 512, one thread
    python benchmarks/agents/run.py layers --batch 32 --threads 2

The peak is the best rate of one large product of two square matrices in float32, measured in the same rounds. A layer
is timed alone, forward and backward, on the inputs that it has in the network. The whole update is the agent's, of
preset pong: both passes of the online network, the target network's forward passes, the optimizer and the priorities.
Its operations are counted by ``torch.utils.flop_counter``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.agents.updates import batches, ours
from benchmarks.lib import report

SIDES = (1_024, 2_048)  # of the square matrices


class Piece(NamedTuple):
    """What is timed."""

    name: str
    flop: float
    """Floating-point operations of one run."""
    run: Callable[[], object]


def peaks() -> list[Piece]:
    """Products of large square matrices."""
    made = []
    for side in SIDES:
        a, b = torch.randn(side, side), torch.randn(side, side)
        made.append(Piece(f"product of {side}² matrices", 2.0 * side**3, lambda a=a, b=b: a @ b))  # type: ignore[misc]
    return made


def layers(network: nn.Module, forward: Callable[[], object]) -> list[Piece]:
    """Convolutions and fully connected layers of a network that ``forward`` runs, in the order in which they run."""
    seen: list[tuple[str, nn.Module, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda module, inputs, _, name=name: seen.append((name, module, inputs[0])))
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    forward()
    for hook in hooks:
        hook.remove()
    return [_layer(name, module, x.detach(), first=position == 0) for position, (name, module, x) in enumerate(seen)]


def _layer(name: str, module: nn.Module, x: Tensor, first: bool) -> Piece:
    x.requires_grad_(not first)  # nobody wants the gradient of an image
    passed_on = torch.ones_like(module(x))

    def both() -> None:
        module.zero_grad()
        x.grad = None
        module(x).backward(passed_on)

    with FlopCounterMode(display=False) as counted:
        both()
    shape = "×".join(map(str, next(module.parameters()).shape))
    return Piece(f"`{name}`, {shape}", float(counted.get_total_flops()), both)


def whole(agent: str, batch: int) -> tuple[Piece, list[Piece]]:
    """The agent's update, and its layers."""
    given = batches(batch)
    update = ours(agent, "eager", "cpu", given)
    update(0)
    network: Any = next(cell.cell_contents for cell in update.__closure__ or () if hasattr(cell.cell_contents, "act"))
    online = network._network.network
    with FlopCounterMode(display=False) as counted:
        update(0)
    image = torch.from_numpy(given[0].data["observation"])
    piece = Piece(f"**update of {agent}**", float(counted.get_total_flops()), lambda: update(0))
    return piece, layers(online, lambda: online({"observation": image}))


def seconds(piece: Piece, least_seconds: float) -> float:
    """Of one run, the mean over ``least_seconds`` at least."""
    runs, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < least_seconds:
        piece.run()
        runs += 1
    return passed / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="dueling_dqn", help="of transitions (default: dueling_dqn)")
    parser.add_argument("--batch", type=int, default=512, help="rows (default: 512)")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each piece in a round (default: 1)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    update, inside = whole(options.agent, options.batch)
    square = peaks()
    pieces = [*square, *inside, update]
    taken: dict[str, list[float]] = {piece.name: [] for piece in pieces}
    for turn in range(options.rounds):
        for piece in pieces[:: 1 if turn % 2 == 0 else -1]:
            taken[piece.name].append(seconds(piece, options.seconds))
    peak = max(piece.flop / median(taken[piece.name]) for piece in square)
    rows = []
    for piece in pieces:
        rates = [piece.flop / each / 1e9 for each in taken[piece.name]]
        milliseconds = report.spread([1000 * each for each in taken[piece.name]])
        share = f"{median(rates) * 1e9 / peak:.0%}"
        rows.append([piece.name, f"{piece.flop / 1e9:.3g}", milliseconds, report.spread(rates), share])
    alone = sum(median(taken[piece.name]) for piece in inside)
    text = [
        f"{report.machine()}; {report.versions('apexrl', 'torch')}.",
        f"Batch {options.batch}, threads: {options.threads}, {options.rounds} rounds in turn; median (least–greatest). "
        f"All layers alone: {1000 * alone:.1f} ms.\n",
        report.table(["", "GFLOP", "ms", "GFLOP/s", "of the peak"], rows),
    ]
    report.save("agents-layers", "\n".join(text), taken, None, options.out)
