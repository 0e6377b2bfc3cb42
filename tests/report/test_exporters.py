"""What Prometheus and an OpenTelemetry collector get of a run, and that their trouble ends none."""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from apexrl.config import ActorConfig, Config, EvaluatorConfig, LearnerConfig, ReplayConfig, StopConfig
from apexrl.errors import ConfigError, LinkError
from apexrl.launch import launch
from apexrl.launch.contained_observers import Contained
from apexrl.links.printable import host_name
from apexrl.report import otel_export, prometheus_endpoint
from apexrl.report.otel_export import OtelExport
from apexrl.report.prometheus_endpoint import PrometheusEndpoint
from apexrl.run.callback_observer import CallbackObserver
from apexrl.run.identity import host_part
from apexrl.run.metric_catalogue import metric_of
from apexrl.run.metrics import read_rows
from apexrl.run.status import RunStatus, WorkerStatus
from free_ports import free_port


class Collector:
    """A collector on this machine: it keeps what it is sent, or answers with ``status``, after ``pause`` seconds."""

    def __init__(self, status: int = 200, pause: float = 0.0) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.paths: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(pause)
                outer.paths.add(self.path)
                outer.requests.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads, self._server.block_on_close = True, False
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def points(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """Of the newest export: metric -> attributes -> value."""
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for metric in self.requests[-1].resource_metrics[0].scope_metrics[0].metrics:
            data = metric.sum if metric.HasField("sum") else metric.gauge
            for point in data.data_points:
                value = point.as_double if point.HasField("as_double") else point.as_int
                labels = tuple(sorted((a.key, a.value.string_value) for a in point.attributes))
                found.setdefault(metric.name, {})[labels] = value
        return found


@dataclass
class Seen:
    """A short run as its exporters showed it."""

    folder: Path = Path()
    scraped: list[str] = field(default_factory=list)
    collector: Collector = field(default_factory=Collector)
    endpoint: PrometheusEndpoint = field(default_factory=lambda: PrometheusEndpoint("0", "run"))
    summary: dict[str, Any] = field(default_factory=dict)


def scrape(endpoint: PrometheusEndpoint) -> str:
    with urllib.request.urlopen(endpoint.url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text: str = answer.read().decode()
        return text


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """A serial run, scraped in its middle."""
    config = Config(
        name="run",
        out=str(tmp_path_factory.mktemp("exported")),
        serial=True,
        replay=ReplayConfig(capacity=2000, min_size=100, updates_per_step=0.25),
        actor=ActorConfig(actors=2, envs_per_actor=4),
        learner=LearnerConfig(batch_size=16),
        evaluator=EvaluatorConfig(eval_episodes=2, eval_envs=2, eval_period_seconds=0.05),
        stop=StopConfig(minutes=2.0),
    )
    seen = Seen()

    def look(status: RunStatus) -> bool:
        if status.metrics and status.eval_return is not None and status.phase == "training":
            seen.scraped.append(scrape(seen.endpoint))
        return len(seen.scraped) >= 2

    with closing(seen.collector):
        exporters = [seen.endpoint, OtelExport(seen.collector.url, "run")]
        seen.summary = launch(config, [*exporters, CallbackObserver(look)])
        seen.folder = Path(config.out) / "run"
        yield seen


def families(text: str) -> dict[str, Any]:
    found = {family.name: family for family in text_string_to_metric_families(text)}
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    return found


def test_prometheus_gets_every_number_of_the_log_by_the_stated_rule(seen: Seen) -> None:
    shown = families(seen.scraped[-1])
    last = [row for row in read_rows(seen.folder / "metrics.jsonl") if row["kind"] == "status"][-1]
    expected = {name for name, value in last.items() if isinstance(value, int | float)}
    assert {"env_steps", "agent/loss", "policy_lag_mean", "eval_return"} <= expected
    for name in expected:
        plain = "apexrl_" + re.sub(r"\W", "_", name)
        family = shown[plain]
        assert family.type == ("counter" if metric_of(name).counts else "gauge")
        for sample in family.samples:
            assert sample.name == plain + "_total" * metric_of(name).counts == metric_of(name).prometheus
            assert sample.labels.items() >= {("run", "run"), ("scope", "run")}
            assert sample.labels["host"]
    steps = [families(text)["apexrl_env_steps"].samples[0].value for text in seen.scraped]
    assert steps == sorted(steps)
    assert 0 < steps[-1] <= seen.summary["env_steps"]
    phases = {sample.labels["phase"]: sample.value for sample in shown["apexrl_phase"].samples}
    assert [phase for phase, value in phases.items() if value] == ["training"]
    assert sum(sample.value for sample in shown["apexrl_workers"].samples) == 4
    assert {sample.labels["role"] for sample in shown["apexrl_restarts"].samples} == set(seen.summary["restarts"])


def test_the_endpoint_ends_with_the_run(seen: Seen) -> None:
    with pytest.raises(urllib.error.URLError):
        scrape(seen.endpoint)


def test_a_collector_gets_the_same_numbers_at_the_end(seen: Seen) -> None:
    assert seen.collector.paths == {"/v1/metrics"}
    resource = {
        a.key: a.value.string_value for a in seen.collector.requests[-1].resource_metrics[0].resource.attributes
    }
    assert resource["service.name"] == "apexrl"
    points = seen.collector.points()
    last = [row for row in read_rows(seen.folder / "metrics.jsonl") if row["kind"] == "status"][-1]
    for name in ("env_steps", "updates", "agent/loss", "eval_return"):
        [(labels, value)] = points["apexrl." + name.replace("/", ".")].items()
        assert value == last[name]
        assert dict(labels).items() >= {("run", "run"), ("scope", "run")}
    assert {dict(labels)["role"] for labels in points["apexrl.restarts"]} == set(seen.summary["restarts"])
    assert "reports" not in seen.summary["dropped"]


def test_any_name_that_an_agent_reports_can_be_scraped_once() -> None:
    status = RunStatus(
        metrics={"grad.norm": 1.0, "grad norm": 2.0, "naïve": 3.0, "none": float("nan")},
        workers=[WorkerStatus("actor-0", "actor", 0), WorkerStatus("actor-1", "actor", 1)],
        dropped={'"quoted"\n': 3},
        hosts={"weights_behind": 2.0},
    )
    with closing(PrometheusEndpoint("127.0.0.1:0", "host", "cp")) as endpoint:
        assert scrape(endpoint) == ""
        endpoint.started(Config(name="cp@here"), Path("runs/cp@here"))
        endpoint.update(status)
        shown = families(scrape(endpoint))
    assert [sample.value for sample in shown["apexrl_agent_grad_norm"].samples] == [1.0]
    assert shown["apexrl_agent_na_ve"].samples[0].value == 3.0
    assert "apexrl_agent_none" not in shown
    assert shown["apexrl_dropped"].samples[0].labels["what"] == '"quoted"\n'
    assert shown["apexrl_workers"].samples[0].value == 2
    assert shown["apexrl_hosts_weights_behind"].samples[0].labels["run"] == "cp"


def test_the_run_of_a_host_that_joined_over_tcp_is_the_learners() -> None:
    with closing(PrometheusEndpoint("0", "host")) as endpoint:
        part = host_part("a@b", host_name())
        endpoint.started(Config(name=part), Path("runs") / part)
        endpoint.update(RunStatus())
        assert families(scrape(endpoint))["apexrl_updates"].samples[0].labels["run"] == "a@b"


@pytest.mark.parametrize("where", ["", "here", "1.2.3.4", "127.0.0.1:", ":70000", "::1:80", "-1"])
def test_an_address_that_is_none_is_refused(where: str) -> None:
    with pytest.raises(ConfigError, match=r"--prometheus .* is no \[HOST:\]PORT"):
        PrometheusEndpoint(where, "run")


def test_a_port_that_is_taken_is_refused_before_the_run() -> None:
    with closing(PrometheusEndpoint("0", "run")) as first:
        port = first.url.rpartition(":")[2].partition("/")[0]
        with pytest.raises(LinkError, match=f"--prometheus {port}: Address already in use.*or 0 for any"):
            PrometheusEndpoint(port, "run")
    with pytest.raises(LinkError, match="nobody can listen"):
        PrometheusEndpoint("no.such.host.invalid:0", "run")


def test_clients_that_ask_nothing_neither_halt_the_run_nor_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_endpoint, "ANSWER_SECONDS", 0.3)
    with closing(PrometheusEndpoint("0", "run")) as endpoint:
        endpoint.started(Config(name="run"), Path("runs/run"))
        address = ("127.0.0.1", int(endpoint.url.rpartition(":")[2].partition("/")[0]))
        idle = [socket.create_connection(address) for _ in range(2 * prometheus_endpoint.MOST_CONNECTIONS)]
        endpoint.update(RunStatus(updates=7))
        try:
            assert families(scrape(endpoint))["apexrl_updates"].samples[0].value == 7
        finally:
            for connection in idle:
                connection.close()


@pytest.mark.parametrize("url", ["", "localhost:4318", "ftp://h", "http://"])
def test_a_collector_without_a_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no URL of a collector"):
        OtelExport(url, "run")


def test_a_password_in_a_collectors_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        OtelExport("http://me:secret@h:4318", "run")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("collector", "told"),
    [
        (lambda: Collector(status=403), "it answered 403, reason: Forbidden"),
        (lambda: Collector(pause=3.0), "no answer within 0.5 s"),
        (None, "no answer within 0.5 s"),
    ],
    ids=["it refuses", "it hangs", "nobody is there"],
)
def test_a_collector_that_fails_is_told_of_and_counted(
    collector: Any, told: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(otel_export, "ANSWER_SECONDS", 0.5)
    there = collector() if collector else None
    export = Contained(OtelExport(there.url if there else f"http://127.0.0.1:{free_port()}", "run"))
    export.started(Config(name="run"), Path("runs/run"))
    began = time.monotonic()
    export.update(RunStatus())
    assert time.monotonic() - began < 0.4  # it is sent from another thread
    export.finished({})
    export.settle(time.monotonic() + 20.0)
    if there:
        there.close()
    texts = [text for text, _ in export.news(time.monotonic())]
    assert texts == [f"the OpenTelemetry collector at 127.0.0.1: {told}. The run goes on, and it is tried again"]
    assert export.lost == 2
    assert capfd.readouterr() == ("", "")
