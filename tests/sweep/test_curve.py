"""What a sweep makes of a learning curve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apexrl.config import StopConfig
from apexrl.sweep.curve import CurveReader, final_height, height, share_used

CURVE = [(0.2, 10.0), (0.5, 40.0), (0.8, 30.0)]


def row(env_steps: int, mean: float, **more: object) -> str:
    return json.dumps({"kind": "evaluation", "env_steps": env_steps, "wall_seconds": 1.0, "mean": mean, **more})


def test_heights_of_a_curve() -> None:
    assert height(CURVE, "best") == 40.0
    assert height(CURVE, "last") == 30.0
    # 10 until 0.5, 40 until 0.8, 30 until the end
    assert height(CURVE, "area") == pytest.approx(0.5 * 10 + 0.3 * 40 + 0.2 * 30)
    assert height(CURVE, "best", until=0.3) == 10.0
    assert height(CURVE, "area", until=0.5) == pytest.approx(10.0)
    assert height(CURVE, "best", until=0.1) is None


def test_what_was_measured_at_the_end_counts_before_the_curve() -> None:
    summary = {"final_eval_return": 35.0, "last_weights_return": 28.0}
    assert final_height(CURVE, "best", summary) == 35.0
    assert final_height(CURVE, "last", summary) == 28.0
    assert final_height(CURVE, "area", summary) == height(CURVE, "area")
    assert final_height(CURVE, "best", {"final_eval_return": None}) == 40.0


def test_a_budget_is_used_by_steps_or_by_minutes_whichever_comes_first() -> None:
    assert share_used(StopConfig(env_steps=100), 50, 60.0) == 0.5
    assert share_used(StopConfig(env_steps=100, minutes=1.0), 50, 45.0) == 0.75
    assert share_used(StopConfig(env_steps=100), 150, 0.0) == 1.0


def test_a_log_is_read_as_it_grows_and_cut_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = CurveReader(path, StopConfig(env_steps=100))
    assert not reader.read()
    path.write_text(row(10, 1.0) + "\n" + row(20, 2.0)[:9])
    assert reader.read()
    assert reader.points == [(0.1, 1.0)]
    path.write_text(
        row(10, 1.0) + "\n" + row(20, 2.0)[:9] + "\n" + row(30, 3.0) + "\n" + row(90, 9.0, final=True) + "\n"
    )
    assert reader.read()
    assert reader.points == [(0.1, 1.0), (0.3, 3.0)]
    assert not reader.read()


def test_a_run_that_begins_anew_has_a_new_curve(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(row(50, 1.0) + "\n")
    reader = CurveReader(path, StopConfig(env_steps=100))
    reader.read()
    other = tmp_path / "other"
    other.write_text(row(10, 2.0) + "\n")
    other.replace(path)
    reader.read()
    assert reader.points == [(0.1, 2.0)]
