"""Serves a run's metrics to Prometheus over HTTP."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET6, socket
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from apexrl.config.placement import host_and_port
from apexrl.errors import ConfigError, LinkError
from apexrl.links.printable import host_name
from apexrl.run.metric_samples import Scope, identity, samples
from apexrl.run.observers import IdleObserver
from apexrl.run.status import RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config

MOST_CONNECTIONS: Final = 8
"""At once; more wait."""
ANSWER_SECONDS: Final = 10.0
"""How long a client may take for its request, or to read the answer."""


class PrometheusEndpoint(IdleObserver):
    """An observer that answers ``GET /metrics`` with the newest status, from threads of its own.

    It has no password and no TLS: let it listen where only Prometheus can ask.

    Args:
        where: ``[HOST:]PORT``; the host is 127.0.0.1 unless given; port 0 takes a free one.
        scope: what the metrics are about.
        run: the run's name on a Redis server; empty: its folder's.

    Raises:
        ConfigError: ``where`` is none.
        LinkError: nobody can listen there.
    """

    ours = True

    def __init__(self, where: str, scope: Scope, run: str = "") -> None:
        self._latest = _Latest(scope, run)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._latest)
        try:
            host, port = host_and_port(where if ":" in where else f":{where}")
            self._server = _Server((host, port), registry)
        except ValueError:
            raise ConfigError(
                f"--prometheus {where!r} is no [HOST:]PORT (an IPv6 address stands in brackets)"
            ) from None
        except OSError as error:
            raise LinkError(
                f"nobody can listen at --prometheus {where}: {error.strerror or error}. Choose another port, or 0 for "
                "any free one"
            ) from None
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="prometheus", daemon=True).start()

    @property
    def url(self) -> str:
        """Where Prometheus asks."""
        host, port = self._server.server_name, self._server.server_port
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def started(self, config: Config, folder: Path) -> None:
        self._latest.began(config, folder)

    def update(self, status: RunStatus) -> None:
        self._latest.status = status

    def finished(self, summary: dict[str, Any]) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more. May be called twice."""
        self._server.shutdown()
        self._server.server_close()


class _Latest(Collector):
    """The newest status, as Prometheus' library asks for it."""

    def __init__(self, scope: Scope, run: str) -> None:
        self.status: RunStatus | None = None
        self._scope, self._run = scope, run
        self._labels: dict[str, str] = {}

    def began(self, config: Config, folder: Path) -> None:
        self._labels = identity(config, folder, host_name(), self._scope, self._run)

    def collect(self) -> Iterator[Metric]:
        status = self.status
        if status is None:
            return
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for metric, value, labels in samples(status):
            labels = {**self._labels, **labels}
            name = metric.prometheus.removesuffix("_total") if metric.counts else metric.prometheus
            family = families.get(name)
            if family is None:
                kind = CounterMetricFamily if metric.counts else GaugeMetricFamily
                family = families[name] = kind(name, metric.description, labels=tuple(labels))
            if not any(sample.labels == labels for sample in family.samples):  # else two names are one to Prometheus
                family.add_metric(tuple(labels.values()), value)
        yield from families.values()


class _Server(ThreadingHTTPServer):
    """A thread for each connection, of which there are a few."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        self.address_family = AF_INET6 if ":" in address[0] else self.address_family
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        handler = type("Handler", (MetricsHandler,), {"registry": registry, "timeout": ANSWER_SECONDS})
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Without a look at the name server, which may not answer."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        if self._free.acquire(timeout=ANSWER_SECONDS):
            super().process_request(request, client_address)
        else:  # Prometheus notes that the target did not answer
            self.shutdown_request(request)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or is slow, is no news."""
