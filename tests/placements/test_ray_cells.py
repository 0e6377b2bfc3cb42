"""Topologies on Ray, as the table of placements says."""

from __future__ import annotations

from pathlib import Path

import pytest
import short_cells

from benchmarks.placements import cells


@pytest.mark.cluster
@pytest.mark.parametrize("cell", [cell for cell in cells.RUNNING if cell[1] == "ray"], ids=" ".join)
def test_a_cell_that_runs(cell: cells.Cell, tmp_path: Path) -> None:
    short_cells.run(cell, tmp_path)
