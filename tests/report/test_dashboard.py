"""The Grafana dashboard of examples/grafana asks for metrics that runs export; a real Prometheus answers it."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from apexrl.config import Config
from apexrl.report.prometheus_endpoint import PrometheusEndpoint
from apexrl.run.metric_catalogue import ACTOR_HOSTS, INFERENCE, LEARNER_HOSTS
from apexrl.run.status import PolicyLag, RunStatus, WorkerStatus
from free_ports import free_port

GRAFANA = Path(__file__).parents[2] / "examples" / "grafana"
BOARD = json.loads((GRAFANA / "apexrl.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def status(env_steps: int = 1000) -> RunStatus:
    """One that has everything: what no single run has, inference and both sides of several hosts. That real runs export
    these names is tested with such runs."""
    return RunStatus(
        phase="training",
        env_steps=env_steps,
        train_return=20.0,
        eval_return=21.0,
        best_eval_return=22.0,
        policy_lag=PolicyLag(1.0, 2.0, 3.0),
        metrics={"loss": 0.5, "gradient_norm": 2.0},
        inference={metric.name: 1.0 for metric in INFERENCE},
        hosts={metric.name: 1.0 for metric in (*LEARNER_HOSTS, *ACTOR_HOSTS)},
        workers=[WorkerStatus("actor-0", "actor", 0)],
        restarts={"actor": env_steps // 1000},
        dropped={"messages": env_steps // 100},
    )


@contextmanager
def endpoints() -> Iterator[list[PrometheusEndpoint]]:
    """Of a learner's host and of an actor host."""
    with closing(PrometheusEndpoint("0", "run", "cp")) as run, closing(PrometheusEndpoint("0", "host", "cp")) as host:
        for endpoint in (run, host):
            endpoint.started(Config(name="cp"), Path("runs/cp"))
            endpoint.update(status())
        yield [run, host]


def test_every_expression_names_metrics_that_are_exported() -> None:
    with endpoints() as (run, _), urllib.request.urlopen(run.url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        exported = {sample.name for family in families for sample in family.samples}
    asked = {name for expression in EXPRESSIONS for name in re.findall(r"apexrl_\w+", expression)}
    assert len(asked) > 20
    assert asked <= exported
    [run_names] = [one for one in BOARD["templating"]["list"] if one["name"] == "run"]
    assert re.findall(r"apexrl_\w+", run_names["query"]["query"])[0] in exported


def test_panels_lie_beside_each_other() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for one, two in itertools.combinations([panel["gridPos"] for panel in BOARD["panels"]], 2):
        apart = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in BOARD["panels"])
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}


@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs the program prometheus (Debian: the same package)"
)
def test_a_prometheus_with_our_file_answers_every_panel(tmp_path: Path) -> None:
    port = free_port()
    text = (
        (GRAFANA / "prometheus.yml")
        .read_text(encoding="utf-8")
        .replace("scrape_interval: 5s", "scrape_interval: 200ms")
    )
    with endpoints() as both:
        targets = "".join(f"\n          - {endpoint.url.split('/')[2]}" for endpoint in both)
        changed = re.sub(r"\n +- 127\.0\.0\.1:9464.*", targets, text)
        assert changed.count("127.0.0.1") == 2
        (tmp_path / "prometheus.yml").write_text(changed, encoding="utf-8")
        words = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        process = subprocess.Popen(
            [*words, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline, left, steps = time.monotonic() + 60.0, list(EXPRESSIONS), 1000
            while left and time.monotonic() < deadline:
                steps += 1000
                for endpoint in both:
                    endpoint.update(status(steps))
                time.sleep(0.3)
                left = [expression for expression in left if not answered(port, expression)]
            assert left == []
        finally:
            process.kill()
            process.wait(10)


def answered(port: int, expression: str) -> list[Any]:
    """What Prometheus has for a panel's expression; it may still be starting."""
    query = expression.replace("$run", ".*").replace("[1m]", "[5s]").replace("[5m]", "[5s]").replace("[10m]", "[5s]")
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found
    except (ConnectionError, urllib.error.URLError) as error:
        if isinstance(error, urllib.error.HTTPError) and error.code == 400:
            raise AssertionError(error.read().decode()) from error
        return []
