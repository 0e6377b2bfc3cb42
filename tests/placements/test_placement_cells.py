"""The table of topologies and placements: whatever it says that runs is run, and whatever it refuses is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import short_cells

from apexrl.cli import main
from apexrl.config import Config, convert
from apexrl.config.placement import Listen, Placement, Ray, Redis
from apexrl.errors import ConfigError
from apexrl.launch import launch
from apexrl.topologies import TOPOLOGIES, placements
from apexrl.topologies.placements import CELLS, LEARNERS, PLACEMENTS
from benchmarks.placements import cells

ELSEWHERE: dict[str, Placement] = {
    "redis": Redis("redis://127.0.0.1:1"),
    "listen": Listen("127.0.0.1:1", "a token that nobody has"),
    "ray": Ray("127.0.0.1:1"),
}


@pytest.mark.long
@pytest.mark.parametrize("cell", [cell for cell in cells.RUNNING if cell[1] != "ray"], ids=" ".join)
def test_a_cell_that_runs(cell: cells.Cell, tmp_path: Path) -> None:
    short_cells.run(cell, tmp_path)


@pytest.mark.parametrize("cell", [cell for cell, how in CELLS.items() if how.reason], ids=" ".join)
def test_a_cell_that_is_refused_says_why_before_anything_starts(cell: cells.Cell, tmp_path: Path) -> None:
    topology, placement = cell
    config = convert.override(Config(), {"topology": topology, "out": str(tmp_path / "runs"), "name": "run"})
    with pytest.raises(ConfigError) as refused:
        launch(config, placement=ELSEWHERE[placement])
    assert str(refused.value) == (
        f"topology {topology} does not run with {PLACEMENTS[placement]}: {CELLS[cell].reason}"
    )
    assert not list(tmp_path.iterdir())


FLAGS = {"redis": ["--redis", "redis://127.0.0.1:1"], "listen": ["--listen", ":1"], "ray": ["--ray", "127.0.0.1:1"]}


@pytest.mark.parametrize("cell", [cell for cell, how in CELLS.items() if how.reason], ids=" ".join)
def test_the_command_says_so_before_it_asks_for_anything_else(
    cell: cells.Cell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for a dataset or a token first, and refused the run with that."""
    monkeypatch.delenv("APEXRL_TOKEN", raising=False)
    assert main.main(["train", "cartpole", "--topology", cell[0], *FLAGS[cell[1]]]) == 2
    assert CELLS[cell].reason in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("cell", [cell for cell, how in CELLS.items() if how.needs], ids=" ".join)
def test_a_cell_that_needs_a_setting_says_which(cell: cells.Cell) -> None:
    config = convert.override(
        Config(), {"topology": cell[0], **{name: not value for name, value in CELLS[cell].needs.items()}}
    )
    with pytest.raises(ConfigError, match=f"topology {cell[0]} runs with {PLACEMENTS[cell[1]]} only as --"):
        launch(config, placement=ELSEWHERE[cell[1]])
    placements.check(convert.override(config, dict(CELLS[cell].needs)), cell[1])


def test_every_topology_has_a_cell_in_every_placement() -> None:
    assert {(row, placement) for row, placement in CELLS if row != LEARNERS} == {
        (name, placement) for name in TOPOLOGIES for placement in PLACEMENTS
    }
    assert {placement for row, placement in CELLS if row == LEARNERS} == {"machine", "redis", "ray"}
    placements.check(convert.override(Config(), {"topology": "apex"}), "redis")
    assert sum(bool(cell.reason) for (row, _), cell in CELLS.items() if row != "offline") <= 4
