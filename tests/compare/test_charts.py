"""What the pictures of a comparison show."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import a_plan

from apexrl.compare import charts
from apexrl.compare.outcome import Outcome


def an_outcome(seed: int, **more: Any) -> Outcome:
    curve = tuple((100 * i, 1.0 * i, 10.0 * i * seed) for i in range(5))
    return dataclasses.replace(
        Outcome("apex", "dqn", seed, seconds=4.0, env_steps_per_second=100.0 * seed, updates_per_second=5.0,
                lag_mean=2.0, lag_p95=3.0, lag_max=90.0, curve=curve), **more
    )  # fmt: skip


def test_the_mean_goes_as_far_as_all_go() -> None:
    short_one = (np.array([0.0, 2.0]), np.array([0.0, 4.0]))
    long_one = (np.array([1.0, 3.0, 4.0]), np.array([10.0, 10.0, 99.0]))
    x, y = charts.mean_line([short_one, long_one])
    assert x.tolist() == [1.0, 2.0]
    assert y.tolist() == [6.0, 7.0]
    x, y = charts.mean_line([long_one])
    assert x.tolist() == [1.0, 3.0, 4.0]


@pytest.mark.parametrize(("arms", "seeds"), [(1, 1), (2, 3), (7, 3), (16, 2)])
def test_what_is_drawn_of_returns(arms: int, seeds: int) -> None:
    plan = a_plan(seeds=seeds)
    runs = {f"apex · agent{i}": [an_outcome(seed) for seed in range(1, seeds + 1)] for i in range(arms)}
    for by_time in (False, True):
        figure = charts.returns(runs, plan, by_time)
        assert figure is not None
        (axes,) = figure.axes
        bold = [line for line in axes.lines if line.get_linewidth() == 2.2]
        assert [line.get_label() for line in bold] == list(runs)
        thin = [line for line in axes.lines if line.get_linewidth() == 0.9]
        assert len(thin) == (arms * seeds if seeds > 1 else 0)
        looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in bold}  # type: ignore[attr-defined]
        assert len(looks) == arms
        mean = (seeds + 1) / 2
        assert list(bold[0].get_ydata()) == [0.0, 10 * mean, 20 * mean, 30 * mean, 40 * mean]  # type: ignore[arg-type]
        assert list(bold[0].get_xdata())[-1] == (4.0 if by_time else 400.0)  # type: ignore[arg-type]
        assert axes.get_xlabel() == ("seconds of training" if by_time else "environment steps")
        assert any("goal 499" in text.get_text() for text in axes.texts)
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
        (legend,) = figure.legends
        assert not legend.get_window_extent().overlaps(axes.get_window_extent())
        assert legend.get_window_extent().y0 >= 0


def test_what_is_drawn_of_lag_and_throughput() -> None:
    plan = a_plan()
    runs = {"a": [an_outcome(1), an_outcome(3)], "b": [an_outcome(1, lag_mean=None, learned_steps_per_second=7.0)]}
    figure = charts.lag(runs, plan)
    assert figure is not None
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a"]  # nothing is known of b
    assert [bar.get_width() for bar in axes.patches] == [2.0]  # type: ignore[attr-defined]
    assert [list(line.get_xdata()) for line in axes.lines] == [[3.0, 3.0], [90.0, 90.0]]  # type: ignore[arg-type]
    figure = charts.throughput(runs, plan)
    assert figure is not None
    assert [axes.get_title() or axes.get_title("left") for axes in figure.axes] == [
        "environment steps per second", "learned steps per second", "updates per second"
    ]  # fmt: skip
    widths = [[bar.get_width() for bar in axes.patches] for axes in figure.axes]  # type: ignore[attr-defined]
    assert widths == [[200.0, 100.0], [0.0, 7.0], [5.0, 5.0]]
    texts = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert texts == [["200", "100"], ["not known", "7.00"], ["5.00", "5.00"]]


def test_only_what_is_known_is_drawn(tmp_path: Path) -> None:
    plan = a_plan()
    failed = {"a": [an_outcome(1, failure="WorkerError: x")], "b": []}
    assert charts.draw(failed, plan, tmp_path) == []
    bare = an_outcome(1, curve=(), lag_mean=None)
    assert [path.name for path in charts.draw({"a": [bare]}, plan, tmp_path)] == ["throughput.png"]
    once = an_outcome(1, curve=((5, 1.0, 3.0),))
    assert len(charts.draw({"a": [once, once]}, plan, tmp_path)) == 4
