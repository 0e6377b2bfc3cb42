"""Callbacks: code of a program's own that watches and steers a run, in the process that starts it.

All are called in that process's main thread, one after the other, between two looks at the workers; in a run over
several machines on the learner's host, on Ray at the driver. Workers go on meanwhile, also beyond the run's limits, but
nobody watches them: what takes long belongs into a thread or a process of the callback's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from apexrl.errors import ConfigError
from apexrl.run.env_changes import EnvChange
from apexrl.run.episode_metrics import Spread
from apexrl.run.status import Level, RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config

Answer = bool | str | None
"""True stops the run cleanly; so does a text that is not empty, which becomes the reason in ``summary.json``."""

_OTHER_ENDS = ("interrupted", "error")
"""Reasons why a run stopped that is not done."""

StatusFunction = Callable[[RunStatus], Answer]
"""A callback that is a function: called with every status, a few times a second."""


@dataclass(frozen=True)
class EndedEpisodes:
    """Training episodes that have ended: a report of one worker, or of other hosts together."""

    count: int
    returns: list[float]
    """Undiscounted, one by one; where many ended on other hosts, of the newest alone."""
    lengths: list[float]
    """Environment steps of the same episodes."""
    metrics: dict[str, Spread]
    """What environments tell of these ``count`` episodes, by name (``Spread``: mean, least and most)."""


@dataclass(frozen=True)
class EvaluationReport:
    """The episodes that the evaluator played with one version of the weights."""

    mean: float
    """Of the undiscounted returns."""
    std: float
    returns: list[float]
    env_steps: int
    """Of the run, when the weights were taken."""
    updates: int
    weights: Literal["", "best", "last"]
    """Whose final evaluation it is; empty: it is none."""
    metrics: dict[str, Spread]
    """What environments tell of these episodes, by name."""


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint that was written."""

    path: Path
    updates: int


class Steering(Protocol):
    """What a callback can do to its run."""

    status: RunStatus
    env_change: EnvChange

    def stop(self, reason: str) -> None: ...
    def tell(self, text: str, level: Level = "info") -> None: ...
    def record(self, metrics: Mapping[str, float]) -> None: ...
    def change_env(self, attributes: Mapping[str, Any], options: Mapping[str, Any]) -> int: ...
    def fail(self, error: Exception) -> None: ...


@dataclass(frozen=True)
class OpenRun:
    """A run that goes on, for its callbacks."""

    config: Config
    folder: Path
    """The run folder."""
    _steering: Steering = field(repr=False)

    @property
    def status(self) -> RunStatus:
        """The newest."""
        return self._steering.status

    @property
    def env_change(self) -> EnvChange:
        """What callbacks have changed of the environments, over resumes too."""
        return self._steering.env_change

    def stop(self, reason: str = "callback") -> None:
        """End the run cleanly: with a last checkpoint and the final evaluations.

        Raises:
            ConfigError: ``reason`` is empty, no text, or ``interrupted`` or ``error``, which mean that it is not done.
        """
        self._steering.stop(checked_reason(reason))

    def tell(self, text: str, level: Level = "info") -> None:
        """Show a text to the user, and write it into ``metrics.jsonl``."""
        self._steering.tell(text, level)

    def change_env(
        self, attributes: Mapping[str, Any] = MappingProxyType({}), options: Mapping[str, Any] = MappingProxyType({})
    ) -> int:
        """Change settings of the run's environments, in every actor on every host; the evaluator's stay as configured.

        Every environment takes them before its next reset. What was changed earlier stays so. The settings are kept in
        the run folder, and hold for a resumed run from its start. Episodes tell the number of the change that they
        were played with: ``episode/env_version``.

        Args:
            attributes: of the environment, or of one of its wrappers, by name; properties are set, too.
            options: what ``reset(options=…)`` gets from then on.

        Returns:
            The number of the change, from 1.

        Raises:
            ConfigError: values are no numbers, texts, lists or dicts, or they are more than 4 KiB.
        """
        return self._steering.change_env(attributes, options)

    def record(self, **metrics: float) -> None:
        """Metrics of the callback's own: ``custom/NAME`` in ``metrics.jsonl``, TensorBoard and every exporter, until
        they are recorded again. A run has at most 64; values of others are counted as dropped.

        Raises:
            TypeError, ValueError: one is no number.
        """
        self._steering.record({name: _number(name, value) for name, value in metrics.items()})


class Callback:
    """Watches and steers a run: override what you need. Every method does nothing by default.

    Methods that are called while the run goes on may answer True or a reason (text) to stop it. One that raises an
    error stops the run: a checkpoint is written, and ``CallbackError`` says which callback it was, and what.
    """

    run: OpenRun
    """Set before ``on_start``."""

    def on_start(self) -> None:
        """The run folder exists; no worker is started yet."""

    def on_status(self, status: RunStatus) -> Answer:
        """A few times a second; the status may be kept."""

    def on_episodes(self, episodes: EndedEpisodes) -> Answer:
        """Training episodes have ended: a report of a worker, about four times a second for each worker."""

    def on_evaluation(self, evaluation: EvaluationReport) -> Answer:
        """The evaluator has measured weights; also the final ones, when the run stops already."""

    def on_checkpoint(self, checkpoint: CheckpointReport) -> Answer:
        """A checkpoint is on disk. Old ones are deleted: copy what is to stay. Where calls take longer than
        ``--checkpoint-seconds``, the file may be gone by the time of the call: look whether it exists."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """The run has ended, well or not, and ``summary.json`` is written."""


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"record({name}={value!r:.60}): a metric must be a number") from None


def checked_reason(reason: object) -> str:
    """Why a callback stops the run.

    Raises:
        ConfigError: it is empty or no text, or says that the run is not done.
    """
    if not isinstance(reason, str) or not reason:
        raise ConfigError(
            f"a callback cannot stop a run as {reason!r:.60}: the reason must be a text that is not empty"
        )
    if reason in _OTHER_ENDS:
        raise ConfigError(f"a callback cannot stop a run as {reason!r}, which would be resumed: give another word")
    return reason
