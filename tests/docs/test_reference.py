"""The generated pages of docs/reference are up to date, and the metrics page names every metric that there is."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from doc_pages import DOCS, ROOT

from apexrl.launch.ray import ray_metrics
from apexrl.links.local.control_board import DROPPED
from apexrl.run.metric_samples import status_scalars
from apexrl.run.status import RunStatus

METRICS = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")


def test_generated_pages_are_up_to_date():
    command = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_flag_of_every_command_is_described():
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `--.*\|  \|$", page, re.MULTILINE) == []
    assert page.count("\n| `--trust` |") == 14  # those that train and resume inherit, too


def explained(name):
    return re.search(rf"`{re.escape(name)}`", METRICS)


def test_every_number_of_a_status_is_explained():
    assert [name for name in status_scalars(RunStatus()) if not explained(name)] == []


def test_everything_that_may_be_dropped_is_explained():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    of_observers = [name for text in sources for name in re.findall(r'self\.dropped = \{"(\w+)"', text)]
    assert of_observers
    assert [name for name in (*DROPPED, *of_observers) if not explained(name)] == []


def test_every_metric_on_ray_is_explained():
    names = [*ray_metrics._GAUGES, *ray_metrics._COUNTERS]
    assert [name for name in names if not (explained(name) or explained(f"apexrl_{name}"))] == []


@pytest.mark.parametrize("module", sorted(path.stem for path in (ROOT / "src" / "apexrl" / "agents").glob("*.py")))
def test_every_metric_of_a_shipped_agent_is_explained(module):
    text = (ROOT / "src" / "apexrl" / "agents" / f"{module}.py").read_text(encoding="utf-8")
    reported = re.findall(r"metrics = \{(.*?)\}", text, re.DOTALL)
    names = [name for body in reported for name in re.findall(r'"(\w+)":', body)]
    assert [name for name in names if not explained(name)] == []
