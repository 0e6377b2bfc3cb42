"""Real links for a program's placeholders: a replay and a weights board, shared between processes or inline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apexrl.topologies.program import Node, Program, ReplayLink, WeightsLink


class Wiring:
    """Makes every link of a program once, and puts it wherever the program names it.

    Args:
        program: whose links to make.
        shared: for processes; else for roles that take turns in one.
        replay_path: a snapshot to begin with, if there is one.
    """

    def __init__(self, program: Program, shared: bool, replay_path: Path) -> None:
        self._links: dict[int, Any] = {}  # id of the placeholder -> what stands for it
        self._replays: list[Any] = []
        self._boards: list[Any] = []
        for port in (port for node in program.nodes for port in node.ports.values()):
            if id(port) in self._links:
                continue
            if isinstance(port, ReplayLink):
                from apexrl.replay import Replay

                real = Replay.load(replay_path) if replay_path.exists() else Replay(**port.options)
                if shared:
                    real.release()  # loading made it ours; it shall be the learner's
                self._replays.append(real)
                self._links[id(port)] = real
            elif isinstance(port, WeightsLink):
                from apexrl.weights import InlineWeights, WeightsBoard

                board = WeightsBoard(port.nbytes) if shared else InlineWeights()
                self._boards.append(board)
                self._links[id(port)] = board

    def ports(self, node: Node) -> dict[str, Any]:
        """The node's ports with real links."""
        return {name: self._links.get(id(port), port) for name, port in node.ports.items()}

    def replay_stats(self) -> dict[str, Any]:
        """``Replay.stats()`` of the (first) replay; empty without one."""
        return dict(self._replays[0].stats()) if self._replays else {}

    def weights_version(self) -> int:
        return int(self._boards[0].version) if self._boards else 0

    def spoilt_weight_reads(self) -> int:
        """Reads of weights that were overtaken three times and kept the old ones."""
        return sum(board.spoilt_reads for board in self._boards)

    def close(self) -> None:
        for replay in self._replays:
            replay.close()
