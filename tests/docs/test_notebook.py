"""The notebook of examples/ runs as it stands there, in a kernel of its own."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_curve.ipynb"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's libraries
def test_the_notebook_shows_a_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = import_module("nbclient"), import_module("nbformat")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    here = Path(shutil.copy(NOTEBOOK, tmp_path))
    notebook = nbformat.read(here, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=400, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    install, train, curve, play, _, tank = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert "__version__" in install.source
    widget = [out["data"] for out in train.outputs if "data" in out]
    assert any("application/vnd.jupyter.widget-view+json" in data for data in widget)
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    texts = [str(one["state"].get("value", "")) for one in state]
    assert any("<polyline" in text for text in texts)
    assert any("env steps" in text for text in texts)
    assert "image/png" in curve.outputs[0]["data"]
    assert float(play.outputs[0]["data"]["text/plain"]) > 400
    assert float(tank.outputs[-1]["data"]["text/plain"]) > 25
    assert len(list((tmp_path / "runs").iterdir())) == 2
