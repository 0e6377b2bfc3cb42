"""A run's status as values of its metrics: by name for the log, and with labels for what collects metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from apexrl.run.episode_metrics import scalars
from apexrl.run.identity import run_of
from apexrl.run.metric_catalogue import PHASE, WORKERS, Metric, metric_of
from apexrl.run.status import Phase, RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config

Scope = Literal["run", "host"]
"""What a process's metrics are about: the whole run on the learner's host, or the part of one other host."""

_BY_LABEL: Final = ("restarts", "dropped")  # given once for each role or kind, which add up to what the log has


class Sample(NamedTuple):
    """The value of a metric at one moment. Its labels are always the same ones."""

    metric: Metric
    value: float
    labels: Mapping[str, str] = {}


def status_scalars(status: RunStatus) -> dict[str, float | None]:
    """The numbers of a status by name, agent metrics as ``agent/<name>``; NaN and infinity as None."""
    values: dict[str, float | None] = {
        "wall_seconds": round(status.elapsed_seconds, 3),
        "env_steps": status.env_steps,
        "updates": status.updates,
        "episodes": status.episodes,
        "env_steps_per_second": round(status.env_steps_per_second, 2),
        "updates_per_second": round(status.updates_per_second, 2),
        "train_return": status.train_return,
        "eval_return": status.eval_return,
        "best_eval_return": status.best_eval_return,
        "replay_size": status.replay_size,
        "samples_per_insert": round(status.samples_per_insert, 4),
        "updates_per_step": round(status.updates_per_step, 6),
        "policy_lag_mean": status.policy_lag.mean,
        "policy_lag_p95": status.policy_lag.p95,
        "policy_lag_max": status.policy_lag.max,
        "lag_wait_seconds": round(status.lag_wait_seconds, 3),
        "weights_version": status.weights_version,
        "restarts": sum(status.restarts.values()),
        "dropped": sum(status.dropped.values()),
    }
    values |= {f"agent/{name}": value for name, value in status.metrics.items()}
    values |= scalars(status.episode_metrics, "episode")
    values |= {f"custom/{name}": value for name, value in status.custom_metrics.items()}
    values |= {f"inference/{name}": round(value, 3) for name, value in status.inference.items()}
    values |= {f"hosts/{name}": value for name, value in status.hosts.items()}
    values |= status.machine
    return {name: None if value is None or not math.isfinite(value) else value for name, value in values.items()}


def samples(status: RunStatus) -> Iterator[Sample]:
    """Everything that is known of ``status``, the samples of one metric after one another."""
    for name, value in status_scalars(status).items():
        if value is not None and name not in _BY_LABEL:
            yield Sample(metric_of(name), value)
    for role, count in status.restarts.items():
        yield Sample(metric_of("restarts"), count, {"role": role})
    for what, count in status.dropped.items():
        yield Sample(metric_of("dropped"), count, {"what": what})
    for phase in get_args(Phase):
        yield Sample(PHASE, float(phase == status.phase), {"phase": phase})
    workers = Counter((worker.role, worker.state) for worker in status.workers)
    for (role, state), count in workers.items():
        yield Sample(WORKERS, count, {"role": role, "state": state})


def identity(config: Config, folder: Path, host: str, scope: Scope, run: str = "") -> dict[str, str]:
    """The labels of all samples of one process.

    Args:
        config, folder: of the run, or of this host's part of it.
        run: the run's name on a Redis server; empty: it is called as its folder.
    """
    return {"run": run or run_of(config.name, folder, host), "host": host, "scope": scope}
