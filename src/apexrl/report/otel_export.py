"""Sends a run's metrics to an OpenTelemetry collector, by OTLP over HTTP."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from apexrl.errors import ConfigError
from apexrl.links.printable import host_name
from apexrl.run.metric_samples import Sample, Scope, identity, samples
from apexrl.run.observers import IdleObserver
from apexrl.run.status import RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config

PERIOD_SECONDS: Final = 10.0
"""Between two exports."""
ANSWER_SECONDS: Final = 5.0
"""How long the collector may take for one, with the repetitions that OTLP prescribes."""

_LOGGER = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
_PATH = "/v1/metrics"


class OtelExport(IdleObserver):
    """An observer that exports the newest status every ten seconds, and once more at the end.

    It ``writes``: a collector that does not answer halts nobody, and what it did not take is told and counted.
    Credentials, certificates and compression are the SDK's own settings: ``OTEL_EXPORTER_OTLP_HEADERS`` …

    Args:
        url: of the collector; without a path, ``/v1/metrics`` is added.
        scope: what the metrics are about.
        run: the run's name on a Redis server; empty: its folder's.
        exporter: in place of one over HTTP.

    Raises:
        ConfigError: ``url`` is none.
    """

    def __init__(self, url: str, scope: Scope, run: str = "", exporter: MetricExporter | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--otel {url!r} is no URL of a collector: http://HOST:4318")
        if parts.username is not None:
            raise ConfigError(
                "--otel: a password in a URL shows in the list of processes; set OTEL_EXPORTER_OTLP_HEADERS"
            )
        self.writes = f"the OpenTelemetry collector at {parts.hostname}"
        full = url if parts.path.strip("/") else parts._replace(path=_PATH).geturl()
        self._exporter = exporter or OTLPMetricExporter(endpoint=full, timeout=ANSWER_SECONDS)
        self._said = _LastLine()
        self._scope, self._run = scope, run
        self._labels: dict[str, str] = {}
        self._resource = Resource.get_empty()
        self._began = time.time_ns()
        self._status: RunStatus | None = None
        self._due = -math.inf

    def started(self, config: Config, folder: Path) -> None:
        self._labels = identity(config, folder, host_name(), self._scope, self._run)
        names = {"service.name": "apexrl", "service.instance.id": "/".join(self._labels.values())}
        self._resource = Resource.create({**names, "host.name": self._labels["host"]})

    def update(self, status: RunStatus) -> None:
        self._status = status
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + PERIOD_SECONDS
            self._export(status)

    def finished(self, summary: dict[str, Any]) -> None:
        try:
            if self._status is not None:
                self._export(self._status)
        finally:
            self._exporter.shutdown()

    def _export(self, status: RunStatus) -> None:
        """Send ``status``; OSError: the collector did not take it."""
        at = time.time_ns()
        grouped: dict[str, list[Sample]] = {}
        for sample in samples(status):
            grouped.setdefault(sample.metric.otel, []).append(sample)
        metrics = [self._metric(name, found, at) for name, found in grouped.items()]
        scope = ScopeMetrics(InstrumentationScope("apexrl"), metrics, "")
        with self._said:
            done = self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        if done is not MetricExportResult.SUCCESS:
            code = self._said.text.partition("batch code: ")[2]
            raise OSError(f"it answered {code.strip('.')}" if code else f"no answer within {ANSWER_SECONDS:g} s")

    def _metric(self, name: str, found: list[Sample], at: int) -> Metric:
        """One metric with all its samples."""
        metric = found[0].metric
        points = [NumberDataPoint({**self._labels, **one.labels}, self._began, at, one.value) for one in found]
        cumulative = AggregationTemporality.CUMULATIVE
        data: Any = Sum(points, cumulative, is_monotonic=True) if metric.counts else Gauge(points)
        return Metric(name, metric.description, f"{{{metric.unit}}}" if metric.unit else "", data)


class _LastLine(logging.Handler):
    """Keeps what the SDK logs of a failure, in place of its way to the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        self._logger = logging.getLogger(_LOGGER)

    def emit(self, record: logging.LogRecord) -> None:
        self.text = (record.getMessage().splitlines() or [""])[0][:200]

    def __enter__(self) -> None:
        self.text = ""
        self._propagates, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagates
