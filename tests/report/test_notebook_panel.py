"""What a notebook's cell shows of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from apexrl.config import Config
from apexrl.report import notebook_panel
from apexrl.report.notebook_panel import MOST_POINTS, NotebookPanel, curve, in_notebook
from apexrl.report.plain_lines import PlainLines
from apexrl.report.run_observers import panels
from apexrl.run.status import RunStatus

pytest.importorskip("ipywidgets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the panel gives the notebook to display; this process takes itself for a kernel."""
    given: list[object] = []
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=given.append))
    return given


def test_a_run_fills_the_widgets(shown: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_panel, "PERIOD_SECONDS", 0.0)
    (panel,) = panels(True)
    assert isinstance(panel, NotebookPanel)
    panel.started(Config(preset="cart<pole"), Path("runs/x"))
    assert shown == [panel.box]
    assert "cart&lt;pole" in panel.title.value
    panel.update(RunStatus(phase="training", env_steps=1234, progress=0.25, eval_return=7.0, elapsed_seconds=9.0))
    assert panel.bar.value == 0.25
    assert "1,234" in panel.numbers.value or "1234" in panel.numbers.value or "1.23k" in panel.numbers.value
    for mean in (1.0, 5.0, float("nan")):
        panel.event("evaluation", {"mean": mean})
    assert panel.curve.value.count("<polyline") == 1
    assert "nan" not in panel.curve.value
    panel.message("one <b>", "warning")
    assert "warning: one &lt;b&gt;" in panel.messages.value
    for stopped_by, style, value in (("error", "danger", 0.25), ("interrupted", "warning", 0.25), ("", "success", 1.0)):
        panel.finished({"stopped_by": stopped_by})
        assert (panel.bar.bar_style, panel.bar.value) == (style, value)


def test_long_runs_keep_a_bounded_curve(shown: list[object]) -> None:
    panel = NotebookPanel()
    for mean in range(5000):
        panel.event("evaluation", {"mean": float(mean)})
    assert len(panel._means) <= MOST_POINTS
    assert panel._means[-1][1] == 4999.0


def test_one_point_and_a_flat_curve_are_drawn() -> None:
    assert "nan" not in curve([(0.0, 3.0)]) + curve([(1.0, 3.0), (2.0, 3.0)])


def test_elsewhere_lines_are_printed(shown: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_panel.importlib.util, "find_spec", lambda name: None)
    assert not in_notebook()
    assert isinstance(panels(True)[0], PlainLines)
