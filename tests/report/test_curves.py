from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apexrl.report.curves import learning_curve, moving_average, policy_lag


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def a_run() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for second in range(30):
        at = {"wall_seconds": second, "env_steps": 1000 * second, "updates": 40 * second}
        lag = None if second < 5 else 10.0 + second % 3
        rows.append({"kind": "status", **at, "train_return": None if second < 2 else 10.0 * second,
                     "env_steps_per_second": 1000.0, "updates_per_second": 40.0, "policy_lag_mean": lag,
                     "policy_lag_p95": lag})  # fmt: skip
        rows.append({"kind": "evaluation", **at, "mean": 15.0 * second, "final": second == 29})
    rows.append({**rows[-1], "mean": 410.0, "weights": "last"})
    return rows


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_a_whole_run_is_drawn(tmp_path: Path) -> None:
    metrics = write(tmp_path / "metrics.jsonl", a_run())
    assert learning_curve(metrics, tmp_path / "curve.png", "cartpole", goal=475.0)
    width, height = png_size(tmp_path / "curve.png")
    assert width > 1000
    assert height > 700


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_run_that_hardly_began_is_drawn(tmp_path: Path, rows: int) -> None:
    metrics = write(tmp_path / "metrics.jsonl", a_run()[:rows])
    assert learning_curve(metrics, tmp_path / "curve.png")
    png_size(tmp_path / "curve.png")


def test_nothing_logged_draws_nothing(tmp_path: Path) -> None:
    assert not learning_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png")
    write(tmp_path / "metrics.jsonl", [{"kind": "message", "text": "x"}])
    assert not learning_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


def test_what_is_on_the_axes(tmp_path: Path) -> None:
    from apexrl.report.curves import _draw

    rows = a_run()
    figure = _draw(
        [r for r in rows if r["kind"] == "status"], [r for r in rows if r["kind"] == "evaluation"], "t", 475.0
    )
    axes = [axis for sub in figure.subfigs for axis in sub.axes]
    assert [axis.get_xlabel() for axis in axes] == ["environment steps", "seconds of training"] + ["seconds"] * 3
    greedy = next(drawn for drawn in axes[0].lines if drawn.get_label() == "evaluation")
    assert list(greedy.get_ydata())[:3] == [0.0, 15.0, 30.0]  # type: ignore[arg-type]
    assert len(list(greedy.get_xdata())) == 29  # type: ignore[arg-type]
    star = next(drawn for drawn in axes[0].lines if str(drawn.get_label()).startswith("best weights"))
    assert star.get_label() == "best weights, fresh seeds: 435"
    diamond = next(drawn for drawn in axes[0].lines if str(drawn.get_label()).startswith("last weights"))
    assert diamond.get_label() == "last weights, fresh seeds: 410"


def test_the_final_star_is_where_its_weights_were() -> None:
    from apexrl.report.curves import _draw

    rows = a_run()
    rows[-2].update(env_steps=12_500, updates=500)  # the best weights, long past
    figure = _draw([r for r in rows if r["kind"] == "status"], [r for r in rows if r["kind"] == "evaluation"], "", None)
    by_steps, by_time = figure.subfigs[0].axes
    for axes, at in ((by_steps, 12_500), (by_time, 12.5)):
        (star,) = [drawn for drawn in axes.lines if str(drawn.get_label()).startswith("best weights")]
        assert list(star.get_xdata()) == [at]  # type: ignore[arg-type]


def test_the_legend_leaves_rising_negative_returns_free() -> None:
    from apexrl.report.curves import _draw

    rows = a_run()
    for row in rows:
        if row["kind"] == "status":
            row["train_return"] = -1000.0 / (1 + row["wall_seconds"])
        else:
            row["mean"] = -900.0 / (1 + row["wall_seconds"])
    figure = _draw([r for r in rows if r["kind"] == "status"], [r for r in rows if r["kind"] == "evaluation"], "", None)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).draw()
    axes = figure.subfigs[0].axes[0]
    legend = axes.get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    for drawn in axes.lines:
        for point in drawn.get_transform().transform(drawn.get_xydata()):
            assert not box.contains(*point)


def test_moving_average() -> None:
    assert moving_average([1.0, 2.0, 3.0], 1) == [1.0, 2.0, 3.0]
    assert moving_average([0.0, 3.0, 6.0, 9.0], 3) == [1.5, 3.0, 6.0, 7.5]
    assert moving_average([], 3) == []


def test_long_runs_are_drawn_in_minutes() -> None:
    from apexrl.report.curves import _draw

    rows = [{"wall_seconds": second, "env_steps": second, "train_return": 1.0} for second in range(0, 601, 100)]
    axes = _draw(rows, [], "", None).subfigs[0].axes
    assert axes[1].get_xlabel() == "minutes of training"
    assert max(axes[1].lines[0].get_xdata()) == 10.0  # type: ignore[type-var, arg-type]


def lagging(windows: int = 40) -> list[dict[str, Any]]:
    """A run whose lag grows, with a status of the filling replay first."""
    rows: list[dict[str, Any]] = [{"kind": "status", "wall_seconds": 0.5, "policy_lag_mean": None}]
    for second in range(1, windows + 1):
        histogram = {"0": 100, "1": 300, "2": 50 + second, "4": second, "48": second // 20}
        rows.append({"kind": "status", "wall_seconds": float(second), "policy_lag_mean": 1.0 + second / 40,
                     "policy_lag_p95": 4.0,
                     "policy_lag_histogram": {k: v for k, v in histogram.items() if v}})  # fmt: skip
    return rows


KNOWN = {"mean": 1.7, "p95": 4.0, "max": 51.0, "histogram": {"0": 4000, "1": 12_000, "2": 2800, "4": 820, "48": 21}}


@pytest.mark.parametrize("windows", [1, 2, 40, 500])
@pytest.mark.parametrize("limit", [0, 20, 1000])
def test_the_policy_lag_is_drawn(tmp_path: Path, windows: int, limit: int) -> None:
    metrics = write(tmp_path / "metrics.jsonl", lagging(windows))
    assert policy_lag(metrics, tmp_path / "lag.png", "a run", KNOWN, limit)
    width, height = png_size(tmp_path / "lag.png")
    assert (width > 1200, height > 500) == (True, True)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("at", [0.0, 5.0])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_run_that_ended_at_once_has_a_time_axis(tmp_path: Path, rows: int, at: float) -> None:
    ended = [row | {"wall_seconds": at} for row in lagging(3)[1 : 1 + rows]]
    assert policy_lag(write(tmp_path / "metrics.jsonl", ended), tmp_path / "lag.png", "a run", KNOWN)


def test_no_policy_lag_draws_nothing(tmp_path: Path) -> None:
    assert not policy_lag(tmp_path / "metrics.jsonl", tmp_path / "lag.png", "", KNOWN)
    metrics = write(tmp_path / "metrics.jsonl", lagging()[:1])
    assert not policy_lag(metrics, tmp_path / "lag.png", "", KNOWN)
    metrics = write(tmp_path / "metrics.jsonl", lagging())
    assert not policy_lag(metrics, tmp_path / "lag.png", "", {"mean": None, "histogram": {}})
    assert not (tmp_path / "lag.png").exists()


def test_what_the_picture_of_the_policy_lag_shows() -> None:
    from apexrl.report.curves import _draw_lag

    over_time, in_all, *_ = _draw_lag(lagging()[1:], "t", KNOWN, 20).axes
    shares = [bar.get_width() for bar in in_all.patches]  # type: ignore[attr-defined]
    assert sum(shares) == pytest.approx(100.0)
    assert shares[1] == pytest.approx(100 * 12_000 / sum(KNOWN["histogram"].values()))  # type: ignore[attr-defined]
    assert in_all.get_title(loc="left") == "mean 1.7,  95 % 4,  max 51"
    (mean, p95), bins = over_time.lines[:2], [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert (mean.get_label(), p95.get_label()) == ("mean", "95 %")
    assert set(p95.get_ydata()) == {bins.index(4) + 0.25}  # type: ignore[call-overload]
    assert list(over_time.lines[2].get_ydata()) == [bins.index(16) + 5 / 8] * 2  # behind lag 20
    (cells,) = over_time.collections
    array = cells.get_array()
    assert array is not None
    assert array.reshape(-1, 40).sum(axis=0).tolist() == pytest.approx([100.0] * 40)


def test_a_long_run_of_policy_lag_is_drawn_in_columns() -> None:
    from apexrl.report.curves import _draw_lag

    axes = _draw_lag(lagging(1000)[1:], "t", KNOWN, 0).axes[0]
    array = axes.collections[0].get_array()
    assert array is not None
    assert array.size // 16 <= 160
    assert axes.get_xlabel() == "minutes of training"
