"""What ``apexrl doctor`` reads of a run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from apexrl.agents import AGENTS, unread
from apexrl.agents.setting_relevance import idle
from apexrl.config import Config
from apexrl.config.convert import flat
from apexrl.config.settings import as_flag
from apexrl.report.diagnosis.finding import Evidence
from apexrl.report.metric_ranges import Family, diagnostic, family, overestimation
from apexrl.report.number_format import number
from apexrl.run.folder import RunFolder
from apexrl.run.metrics import read_rows

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
MOST_BYTES = 64 << 20  # of metrics.jsonl, from its end
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation during training."""

    mean: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    terminated: float | None  # share of the episodes
    expected: float | None  # discounted return that the agent expected
    observed: float | None  # and that it had
    updates: int = 0  # of the learner, before it


@dataclass(frozen=True)
class RunRecord:
    """The settings, metrics, evaluations and summary of one run.

    Args:
        settings: by flat name.
        rows: status lines, oldest first.
        evaluations: those during training, oldest first.
        read: whether the agent reads a setting as the others are.
        actions: how many discrete actions there are; 0: unknown, or a box.
        numbers: of an action in a box with bounds; 0: unknown, or another kind.
    """

    settings: Mapping[str, Any]
    rows: Sequence[Row] = ()
    evaluations: Sequence[Evaluation] = ()
    summary: Row = field(default_factory=dict)
    unused: frozenset[str] = frozenset()
    actions: int = 0
    numbers: int = 0

    @classmethod
    def of(cls, path: str | Path) -> RunRecord:
        """The record of the run in ``path``, finished or not.

        Raises:
            ConfigError: there is no run, or its config.toml is not one of this version.
            SnapshotError: a file cannot be read.
        """
        folder = RunFolder.open(path)
        config: Config = folder.config()
        lines = read_rows(folder.metrics_path, MOST_BYTES) if folder.metrics_path.is_file() else []
        spec = folder.spec()
        nvec = (
            (spec.action.nvec or (spec.action.n,))
            if spec is not None and not (spec.action.box or spec.action.hybrid)
            else ()
        )
        return cls(
            flat(config),
            [row for row in lines if row.get("kind") == "status"],
            [_evaluation(row) for row in lines if row.get("kind") == "evaluation" and not row.get("final")],
            folder.summary(),
            frozenset(unread(config.agent.agent)) | frozenset(idle(config)),
            math.prod(nvec) if nvec else 0,
            math.prod(spec.action.shape) if spec is not None and spec.action.box and spec.action.bounded else 0,
        )

    # Settings

    def reads(self, name: str) -> bool:
        """Whether there is such a setting, and agent and other settings leave it a meaning."""
        return name in self.settings and name not in self.unused

    def setting(self, name: str, otherwise: float = 0.0) -> float:
        value = _number(self.settings.get(name))
        return otherwise if value is None else value

    def given(self, name: str) -> Evidence:
        return Evidence(as_flag(name, self.settings[name]), CONFIG)

    @property
    def agent(self) -> str:
        return str(self.settings["agent"])

    @property
    def family(self) -> Family:
        return family(self.agent)

    @property
    def discrete(self) -> bool:
        """Whether actions are known to be counted."""
        return self.actions > 0 or (self.agent in AGENTS and "Box" not in AGENTS[self.agent].needs)

    # Progress

    def last(self, name: str) -> float | None:
        """A number of the last status line that has it."""
        return next((value for row in reversed(self.rows) if (value := _number(row.get(name))) is not None), None)

    @property
    def env_steps(self) -> float:
        return self.last("env_steps") or 0.0

    @property
    def updates(self) -> float:
        return self.last("updates") or 0.0

    @property
    def episode_length(self) -> float | None:
        """Mean length of episodes: of the later evaluations, or of training, whichever is more."""
        known = [fmean(one.lengths) for one in self.later if one.lengths]
        if episodes := self.last("episodes"):
            known.append(self.env_steps / episodes)
        return max(known, default=None)

    @cached_property
    def later(self) -> Sequence[Evaluation]:
        """The evaluations of the second half, at least the last one."""
        return self.evaluations[len(self.evaluations) // 2 :]

    # Metrics

    def values(self, name: str) -> list[float]:
        """What the status lines of the second half say of a metric, one value for each that is new."""
        held = [(row.get("updates"), _number(row.get(name))) for row in self.rows if _number(row.get("updates"))]
        known = [value for _, value in held[len(held) // 2 :] if value is not None]
        return [value for before, value in pairwise([math.nan, *known]) if value != before]

    def metric(self, name: str) -> float | None:
        """The median of ``values``; of an agent's metric by its own name."""
        found = self.values(f"agent/{name}") or self.values(name)
        return median(found) if found else None

    def seen(self, name: str) -> Evidence:
        """A metric as evidence, with its healthy range."""
        entry = diagnostic(name, self.family)
        healthy = f" (healthy: {entry.healthy})" if entry and entry.healthy != "any" else ""
        return Evidence(f"{name} {number(self.metric(name), small=True)}{healthy}", METRICS)

    def outside(self, name: str, above: bool) -> bool:
        """Whether a metric is above, or below, its healthy range."""
        value, entry = self.metric(name), diagnostic(name, self.family)
        return value is not None and entry is not None and (value > entry.high if above else value < entry.low)

    @property
    def overestimation(self) -> float | None:
        """Of the later evaluations of trained weights, their mean."""
        found = [
            overestimation(one.expected, one.observed)
            for one in (self.later if len(self.evaluations) > 1 else ())
            if one.expected is not None and one.observed is not None
        ]
        return fmean(found) if found else None

    @cached_property
    def learned(self) -> float:
        """As ``risen``; of agents that explore by their policy the returns of training must have risen, too."""
        training = self._training
        if self.summary.get("stopped_by") == "stop_at_return":
            return 1.0
        if self.family == "replay" or len(self.evaluations) < 2 or len(training) < 2:
            return self.risen  # a replay's training explores: its returns may stay low
        return min(self.risen, _rise(training[0], training[-1], self._spread))

    @cached_property
    def risen(self) -> float:
        """0: evaluations return what they did at the start; 1: much more, or the goal was reached."""
        if self.summary.get("stopped_by") == "stop_at_return":
            return 1.0
        if len(self.evaluations) < 2:
            return 0.0
        return _rise(*self._began_and_ended, self._spread)

    @property
    def rose(self) -> bool:
        """Whether the later evaluations return more than the first, by three standard errors of its mean."""
        episodes = len(self.evaluations[0].returns) if self.evaluations else 0
        if self.risen >= 0.5 or len(self.evaluations) < 2 or episodes < 2:  # one episode has no deviation
            return self.risen >= 0.5
        before, after = self._began_and_ended
        return after - before > max(3.0 * self._spread / math.sqrt(episodes), 0.1 * abs(before))

    @property
    def _began_and_ended(self) -> tuple[float, float]:
        """Mean returns of the first evaluation, and of the later half of the others."""
        first, *others = self.evaluations
        before = first.mean
        if first.updates and self._training:  # a slow environment's first evaluation: the weights were trained by then
            before = min(before, self._training[0])
        return before, fmean(one.mean for one in others[len(others) // 2 :])

    @cached_property
    def _training(self) -> list[float]:
        """Returns in training."""
        return [value for row in self.rows if (value := _number(row.get("train_return"))) is not None]

    @property
    def _spread(self) -> float:
        """Standard deviation of the first evaluation's returns."""
        returns = self.evaluations[0].returns
        return pstdev(returns) if len(returns) > 1 else 0.0

    @property
    def returns_alike(self) -> bool:
        """Whether all episodes of all evaluations had the same return."""
        returns = [value for one in self.evaluations for value in one.returns]
        return len(self.evaluations) > 1 and max(returns) - min(returns) <= 1e-6 * max(1.0, abs(returns[0]))


def _rise(before: float, after: float, spread: float) -> float:
    """How clearly ``after`` lies above ``before``, 0 … 1."""
    unit = spread + 0.25 * abs(before)
    return min(1.0, max(0.0, (after - before) / (3.0 * unit))) if unit > 0.0 else float(after > before)


def _number(value: Any) -> float | None:
    """A finite number; None: it is something else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(value for one in values if (value := _number(one)) is not None) if isinstance(values, list) else ()


def _evaluation(row: Row) -> Evaluation:
    returns = _numbers(row.get("returns"))
    mean = _number(row.get("mean"))
    return Evaluation(
        mean if mean is not None else fmean(returns or (0.0,)),
        returns or (mean or 0.0,),
        tuple(int(length) for length in _numbers(row.get("lengths"))),
        _number(row.get("terminated")),
        _number(row.get("expected_return")),
        _number(row.get("discounted_return")),
        int(_number(row.get("updates")) or 0),
    )
