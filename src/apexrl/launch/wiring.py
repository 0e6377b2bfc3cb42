"""Makes the links of a program: a replay, a weights board and others, shared between processes or inline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.random import SeedSequence

from apexrl.errors import ConfigError
from apexrl.roles.checkpointing import LIVE
from apexrl.roles.newest_weights import version_of
from apexrl.topologies.program import (
    BatchesLink,
    CountLink,
    Link,
    MixedLink,
    Node,
    Program,
    ReceiptsLink,
    ReplayLink,
    WeightsLink,
)

_MOST = {  # that a replay takes -> what says how many there are
    "writers": (4096, "actor slots", "--actors and --actor-slots"),
    "streams": (65_536, "environments", "--actors, --actor-slots and --envs-per-actor"),
}
_SUMMED = ("size", "capacity", "inserted", "sampled", "evicted", "updates_applied", "updates_stale", "lost")


class Wiring:
    """Makes every link of a program once, and puts it wherever the program names it.

    Args:
        program: whose links to make.
        shared: for processes; else for roles that take turns in one.
        replay_path: a snapshot to begin with, if there is one.
        updates: made so far. New replays then draw otherwise than those of the run's earlier parts.
    """

    def __init__(self, program: Program, shared: bool, replay_path: Path, updates: int = 0) -> None:
        self._links: dict[int, Any] = {}  # id of the placeholder -> what stands for it
        self._replays: list[Any] = []
        self._filled: list[Any] = []  # replays that were full from the beginning
        self._boards: list[Any] = []
        self._others: list[Any] = []
        self._thread_counts: dict[str, Any] = {}
        self._shared = shared
        self._replay_path = replay_path
        self._updates = updates
        for node in program.nodes:
            for port in node.ports.values():
                self._make(port)

    def _drawing(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Options of a replay that draws numbers of its own in every part of a run."""
        if not self._updates or "seed" not in options:
            return options
        return {**options, "seed": int(SeedSequence([options["seed"], self._updates]).generate_state(1)[0])}

    def _make(self, port: Any) -> Any:
        """What stands for a placeholder, made at its first mention; anything else is what it is."""
        if id(port) in self._links:
            return self._links[id(port)]
        real = port
        if isinstance(port, ReplayLink):
            from apexrl.replay import Replay

            _check_room(port.options)
            if port.make is not None:
                real = port.make(**self._drawing(port.options))
                self._filled.append(real)
            elif self._replay_path.exists():
                room = {name: port.options[name] for name in ("writers", "streams") if port.options.get(name)}
                real = Replay.load(self._replay_path, port.options.get("check_memory", True), **room)
            else:
                real = Replay(**self._drawing(port.options))
            if self._shared:
                real.release()  # loading made it ours; it shall be its sampler's
            if port.make is None:
                self._replays.append(real)
        elif isinstance(port, MixedLink):
            from apexrl.replay import MixedReplay

            parts = {LIVE: self._make(port.replay), "dataset": self._make(port.dataset)}
            real = MixedReplay(parts, {LIVE: 1.0 - port.share, "dataset": port.share})
        elif isinstance(port, BatchesLink):
            real = self._make(port.replay).serve(**port.options)
        elif isinstance(port, ReceiptsLink):
            from apexrl.replay.chunks import Receipts

            real = Receipts(resumed=port.resumed)
        elif isinstance(port, WeightsLink):
            from apexrl.shared.weights_board import InlineWeights, WeightsBoard

            real = WeightsBoard(port.nbytes) if self._shared else InlineWeights()
            self._boards.append(real)
        elif isinstance(port, Link):
            real = port.make(shared=self._shared, **port.options)
            self._others.append(real)
            if hasattr(real, "spoilt_reads"):  # weights are read from it
                self._boards.append(real)
        elif isinstance(port, CountLink):
            from apexrl.links.local.tunable_count import TunableCount

            real = self._thread_counts[port.name] = TunableCount(port.start, self._shared)
        if real is not port:
            self._links[id(port)] = real
        return real

    def ports(self, node: Node) -> dict[str, Any]:
        """The node's ports with real links."""
        return {name: self._links.get(id(port), port) for name, port in node.ports.items()}

    def set_count(self, name: str, value: int) -> None:
        """Set a thread count of the program, which some role must have among its ports.

        Raises:
            KeyError: none has.
        """
        self._thread_counts[name].value = value

    def replay_stats(self) -> dict[str, Any]:
        """``Replay.stats()``; empty without a replay. Of several, what they hold and count together. One that was full
        from the beginning counts where there is no other."""
        stats: list[dict[str, Any]] = [replay.stats() for replay in self._replays or self._filled]
        if len(stats) < 2:
            return stats[0] if stats else {}
        whole = {name: sum(one[name] for one in stats) for name in _SUMMED}
        inserted = whole["inserted"]
        return {**whole, "observed_samples_per_insert": whole["sampled"] / inserted if inserted else 0.0}

    def weights_version(self) -> int:
        return version_of(int(self._boards[0].version)) if self._boards else 0

    def spoilt_weight_reads(self) -> int:
        """Reads of weights that were overtaken three times and kept the old ones."""
        return sum(board.spoilt_reads for board in self._boards)

    def close(self) -> None:
        for link in (*self._replays, *self._filled, *self._others):
            if hasattr(link, "close"):
                link.close()


def _check_room(options: Mapping[str, Any]) -> None:
    """ConfigError: a replay has no place for so many actors; names the flags."""
    for name, (most, what, flags) in _MOST.items():
        if (options.get(name) or 0) > most:
            raise ConfigError(f"one replay has room for {most:,} {what}, not {options[name]:,}: lower {flags}")
