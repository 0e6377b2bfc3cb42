"""Which topology runs in which placement, as data: ``apexrl list topologies`` shows it, and tests iterate over it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from apexrl.config import Config
from apexrl.config.convert import flat
from apexrl.config.game_names import has_opponents
from apexrl.config.settings import as_flag
from apexrl.errors import ConfigError

MACHINE: Final = "machine"
PLACEMENTS: Final = {MACHINE: "one machine", "redis": "--redis", "listen": "--listen", "ray": "--ray"}
"""Name of a placement -> what the user gives for it."""

LEARNERS: Final = "--learners N"
"""The row of learners that make every update together, as ``apex`` and ``impala`` can have them."""


class Cell(NamedTuple):
    """A topology in a placement."""

    reason: str = ""
    """Why it is refused, in one line; empty: it runs."""
    needs: Mapping[str, Any] = MappingProxyType({})
    """Flat names of settings with which alone it runs."""


RUNS: Final = Cell()
_BY_REDIS = Cell("--listen does not carry experience: use --redis, which keeps it while the learner is away")
_STAYS = Cell("nobody acts, so nothing of it could run on another host")

CELLS: Final[Mapping[tuple[str, str], Cell]] = {
    ("apex", MACHINE): RUNS,
    ("apex", "redis"): RUNS,
    ("apex", "listen"): _BY_REDIS,
    ("apex", "ray"): RUNS,
    ("impala", MACHINE): RUNS,
    ("impala", "redis"): RUNS,
    ("impala", "listen"): _BY_REDIS,
    ("impala", "ray"): RUNS,
    ("gorila", MACHINE): RUNS,
    ("gorila", "redis"): RUNS,
    ("gorila", "listen"): _BY_REDIS,
    ("gorila", "ray"): RUNS,
    ("sample_factory", MACHINE): RUNS,
    ("sample_factory", "redis"): RUNS,
    ("sample_factory", "listen"): _BY_REDIS,
    ("sample_factory", "ray"): RUNS,
    ("offline", MACHINE): RUNS,
    ("offline", "redis"): _STAYS,
    ("offline", "listen"): _STAYS,
    ("offline", "ray"): _STAYS,
    ("seed", MACHINE): RUNS,
    ("seed", "redis"): RUNS,
    ("seed", "listen"): RUNS,
    ("seed", "ray"): RUNS,
    ("ga3c", MACHINE): RUNS,
    ("ga3c", "redis"): RUNS,
    ("ga3c", "listen"): RUNS,
    ("ga3c", "ray"): RUNS,
    ("a3c", MACHINE): RUNS,
    ("a3c", "redis"): Cell(needs={"hogwild": False}),
    ("a3c", "listen"): Cell(needs={"hogwild": False}),
    ("a3c", "ray"): Cell(needs={"hogwild": False}),
    (LEARNERS, MACHINE): RUNS,
    (LEARNERS, "redis"): RUNS,
    (LEARNERS, "ray"): RUNS,
}
"""(Topology or ``LEARNERS``, placement) -> whether it runs. A pair that is not here means nothing."""


def check(config: Config, placement: str) -> None:
    """Refuse a topology where it cannot run. One from outside this package is for ``crossing`` to judge.

    Raises:
        ConfigError: the message holds the cell's reason, or the settings that it needs.
    """
    name = config.topology
    if placement != MACHINE and has_opponents(config.env, config.env.env):
        raise ConfigError(
            f"agents that are played by policies of a pool do not run with {PLACEMENTS[placement]}: the pool lies in "
            "the run folder, which workers on other hosts do not see"
        )
    cell = CELLS.get((name, placement), RUNS)
    if cell.reason:
        raise ConfigError(f"topology {name} does not run with {PLACEMENTS[placement]}: {cell.reason}")
    if placement == "ray" and config.replay.dataset:
        raise ConfigError("--dataset does not go with --ray, whose replay lies on several nodes: leave out one of them")
    values = flat(config)
    if off := [setting for setting, value in cell.needs.items() if values[setting] != value]:
        has, needs = (" ".join(as_flag(one, of[one]) for one in off) for of in (values, cell.needs))
        raise ConfigError(f"topology {name} runs with {PLACEMENTS[placement]} only as {needs}, and not with {has}")


def table() -> tuple[list[list[str]], list[str]]:
    """The table in words: lines of a topology and what holds in each placement; and notes, to which numbers refer."""
    notes: list[str] = []

    def words(cell: Cell | None) -> str:
        if cell is None:
            return ""
        note = cell.reason or " ".join(as_flag(*one) for one in cell.needs.items())
        if note and note not in notes:
            notes.append(note)
        number = f" ({notes.index(note) + 1})" if note else ""
        return ("no" if cell.reason else "yes") + number

    rows = dict.fromkeys(row for row, _ in CELLS)
    return [[row, *(words(CELLS.get((row, placement))) for placement in PLACEMENTS)] for row in rows], notes
