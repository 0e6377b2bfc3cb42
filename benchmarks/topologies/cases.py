"""What every contestant of ``peers.py`` is given, alike. Read by all their interpreters: standard library only.

| | cartpole | pong |
| --- | --- | --- |
| environment | CartPole-v1 | PongNoFrameskip-v4, 84×84 grey, action repeat 4, stack 4, 30 no-ops, a lost generation ends an episode, rewards clipped |
| network | 512–512, ReLU, shared by policy and value | convolutions 32 8×8/4, 64 4×4/2, 64 3×3/1, then 512, ReLU, shared |
| unroll, steps | 32 | 128 |
| batch of an update, steps | 1024 | 1024 |
| minibatches × epochs | 1 × 1 | 4 × 4 |
| processes that step environments | 2 | 2 |
| environments of each | 16 | 8 |
| threads of PyTorch in the learner | 1 | 1 |
| optimizer | Adam | Adam |

Observations and returns are not normalised, nobody evaluates, and nobody sees a GPU. Step sizes do not matter here:
they are each one's own, as are targets (Sample Factory's are GAE's, the others' V-trace's). The batch of cartpole is Sample Factory's default, its network too, but that its default has
ELU and an RNN, which are off. Those of pong are Sample Factory's for Atari. ``cartpole-256`` is cartpole with the layers of RLlib's
default network, 256–256.
"""  # noqa: E501

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """One environment and network, as every contestant has them."""

    env: str
    hidden: tuple[int, ...]
    atari: bool = False
    unroll: int = 32  # steps
    batch_steps: int = 1024  # of one update
    minibatches: int = 1  # of one epoch
    epochs: int = 1
    workers: int = 2  # processes that step environments
    envs: int = 16  # of each
    frames: int = 1  # of the emulator in one step: rates are frames
    warm_up: float = 10.0  # seconds of learning before anything counts
    window: float = 30.0  # seconds that count

    @property
    def unrolls(self) -> int:
        """Of one update."""
        return self.batch_steps // self.unroll


CASES = {
    "cartpole": Case("CartPole-v1", (512, 512)),
    "cartpole-256": Case("CartPole-v1", (256, 256)),
    "pong": Case(
        "PongNoFrameskip-v4", (512,), True, unroll=128, minibatches=4, epochs=4, envs=8, frames=4, warm_up=20.0,
        window=100.0,
    ),
}  # fmt: skip


class Counted:
    """What a learner has consumed, as its own counter says, from its first update until enough is known.

    Args:
        case: its ``warm_up`` and ``window``.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self.series: list[tuple[float, float]] = []  # monotonic seconds, environment steps learned from
        self._used: list[tuple[float, float, float]] = []  # the same, at most once a second, and processor seconds

    def add(self, now: float, steps: float) -> bool:
        """Enter the counter; True when the window is over."""
        if steps and (not self.series or steps > self.series[-1][1]):
            self.series.append((now, steps))
            if not self._used or now >= self._used[-1][0] + 1.0:
                self._used.append((now, steps, processor_seconds()))
        return bool(self.series) and now > self.series[0][0] + self._case.warm_up + self._case.window

    def result(self) -> dict[str, Any]:
        """Steps a second between the first and the last time within the window that the counter moved, and a second of
        the processor time of this process and all that descend from it.

        Raises:
            SystemExit: it moved less than twice.
        """
        began = self.series[0][0] + self._case.warm_up if self.series else 0.0
        inside = [point for point in self.series if began <= point[0] <= began + self._case.window]
        if len(inside) < 2:
            raise SystemExit(f"the counter of steps learned from moved {len(inside)} times in the window: too short")
        (first, low), (last, high) = inside[0], inside[-1]
        rate = (high - low) / (last - first)
        found = {"steps_per_second": rate, "seconds": last - first, "moved": len(inside), "case": asdict(self._case)}
        used = [point for point in self._used if first <= point[0] <= last]
        if len(used) > 1:
            found["steps_per_processor_second"] = (used[-1][1] - used[0][1]) / (used[-1][2] - used[0][2])
        return found


def processor_seconds() -> float:
    """Of this process and of all living ones that descend from it."""
    parents, spent = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                spent[int(entry.name)] = int(fields[11]) + int(fields[12])
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(spent.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")
