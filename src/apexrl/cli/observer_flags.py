"""Command-line flags that say where a run's metrics go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from apexrl.run.metric_samples import Scope
from apexrl.run.status import Observer


@dataclass(frozen=True, kw_only=True)
class ObserverFlags:
    """Flags of every command that works at a run."""

    prometheus: Annotated[str, tyro.conf.arg(metavar="[HOST:]PORT")] = ""
    """Serve metrics to Prometheus at http://HOST:PORT/metrics (needs apexrl[prometheus]).
    HOST is 127.0.0.1 unless given; port 0 takes any free one. The address is printed."""
    otel: Annotated[str, tyro.conf.arg(metavar="URL")] = ""
    """Send metrics to an OpenTelemetry collector, such as http://HOST:4318 (needs apexrl[otel]).
    Credentials: the environment variable OTEL_EXPORTER_OTLP_HEADERS."""


def exporters(wanted: ObserverFlags, scope: Scope, run: str = "") -> tuple[list[Observer], list[str]]:
    """The observers that ``wanted`` asks for, and what to tell the user of them.

    Args:
        scope: what this process knows: the whole run, or one host's part of it.
        run: the run's name on a Redis server; empty: its folder's.

    Raises:
        ConfigError: an address is none.
        LinkError: nobody can listen there.
        ModuleNotFoundError: the extra is not installed.
    """
    observers: list[Observer] = []
    told = []
    if wanted.otel:
        from apexrl.report.otel_export import OtelExport

        observers.append(OtelExport(wanted.otel, scope, run))
    if wanted.prometheus:
        from apexrl.report.prometheus_endpoint import PrometheusEndpoint

        endpoint = PrometheusEndpoint(wanted.prometheus, scope, run)
        observers.append(endpoint)
        told.append(f"metrics for Prometheus: {endpoint.url}")
    return observers, told
