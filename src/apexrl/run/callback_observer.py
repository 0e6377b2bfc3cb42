"""The observer that calls a callback, contains its errors, and tells when it takes long."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from apexrl.errors import CallbackError, ConfigError
from apexrl.run.callbacks import (
    Callback,
    CheckpointReport,
    EndedEpisodes,
    EvaluationReport,
    OpenRun,
    StatusFunction,
    Steering,
    checked_reason,
)
from apexrl.run.episode_metrics import told_spreads
from apexrl.run.observers import IdleObserver
from apexrl.run.status import RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config

LONG_SECONDS: Final = 30.0
"""Of one call, after which the user is told; and …"""
INTERRUPTIBLE_SECONDS: Final = 5.0
"""… after which Ctrl-C interrupts it."""

_calling_since: float | None = None


_OURS: Final = str(Path(__file__).parents[1]) + os.sep


class CountedInterrupt(KeyboardInterrupt):
    """Ctrl-C, or another signal, which ``launch.interrupts`` has counted."""


def interruptible() -> bool:
    """Whether the main thread has been in one call of a callback for so long that Ctrl-C should interrupt it."""
    since = _calling_since
    return since is not None and time.monotonic() - since > INTERRUPTIBLE_SECONDS


def callback_observers(
    callbacks: Callback | StatusFunction | Sequence[Callback | StatusFunction],
) -> list[CallbackObserver]:
    """An observer for each callback.

    Raises:
        ConfigError: one is no callback.
    """
    return [CallbackObserver(one) for one in (callbacks if isinstance(callbacks, Iterable) else [callbacks])]


class CallbackObserver(IdleObserver):
    """Calls a callback. Its first error stops the run, and it is not called again; nor after Ctrl-C has interrupted it.

    Args:
        callback: a ``Callback``, or a function of ``RunStatus``.

    Raises:
        ConfigError: it is neither.
    """

    def __init__(self, callback: Callback | StatusFunction) -> None:
        if isinstance(callback, type):
            raise ConfigError(f"callbacks= takes callbacks, not classes: write {callback.__name__}()")
        if not isinstance(callback, Callback) and not callable(callback):
            raise ConfigError(f"{callback!r} is no callback: give a function, or an object of a subclass of Callback")
        self._callback = callback
        self._name = getattr(callback, "__qualname__", "") or type(callback).__qualname__
        self._steering: Steering | None = None
        self._failed = False
        self._since: float | None = None  # as _calling_since, of this callback
        self._ended = threading.Event()

    def steer(self, steering: Steering) -> None:
        """Take what the callback may do to the run; called before ``started``."""
        self._steering = steering

    def started(self, config: Config, folder: Path) -> None:
        threading.Thread(target=self._watch, name=f"watch of {self._name}", daemon=True).start()
        if isinstance(self._callback, Callback):
            assert self._steering is not None, "a ledger lets callbacks steer before it tells them that the run begins"
            self._callback.run = OpenRun(config, folder, self._steering)
            self._call("on_start", self._callback.on_start)

    def update(self, status: RunStatus) -> str:
        if isinstance(self._callback, Callback):
            return self._call("on_status", self._callback.on_status, status)
        return self._call("the function", self._callback, status)

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        callback = self._callback
        if not isinstance(callback, Callback):
            return
        reason = ""
        if kind == "episodes":
            reason = self._call("on_episodes", callback.on_episodes, _episodes(values))
        elif kind == "evaluation":
            reason = self._call("on_evaluation", callback.on_evaluation, _evaluation(values))
        elif kind == "checkpoint":
            report = CheckpointReport(Path(values["path"]), int(values["updates"]))
            reason = self._call("on_checkpoint", callback.on_checkpoint, report)
        if self._steering is not None and reason:
            self._steering.stop(reason)

    def finished(self, summary: Mapping[str, Any]) -> None:
        if isinstance(self._callback, Callback):
            self._call("on_end", self._callback.on_end, summary)
        self._ended.set()

    def _call(self, method: str, function: Callable[..., Any], *args: Any) -> str:
        """Returns why the run stops; empty: it goes on."""
        global _calling_since
        if self._failed:
            return ""
        _calling_since = self._since = time.monotonic()
        try:
            return _reason(function(*args))
        except CountedInterrupt:  # the run is about to stop
            self._failed = True  # the next call would hang as this one did
            return ""
        except KeyboardInterrupt:  # the callback's own
            self._failed = True
            if self._steering is not None:
                self._steering.stop("callback")
            return "callback"
        except (Exception, SystemExit) as error:
            self._failed = True
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if not frame.filename.startswith(_OURS)]
            where = (own or frames)[-1]
            what = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            failure = CallbackError(f"callback {self._name}: {method} raised {what}")
            failure.__cause__ = error
            if self._steering is None:
                raise failure from error
            self._steering.fail(failure)
            return ""
        finally:
            _calling_since = self._since = None

    def _watch(self) -> None:
        """The thread: tell once of each call that takes long. The main thread is in it, so nobody else can."""
        told: float | None = None
        while not self._ended.wait(INTERRUPTIBLE_SECONDS / 2):
            since = self._since
            if since is not None and since != told and time.monotonic() - since > LONG_SECONDS:
                told = since
                print(
                    f"apexrl: callback {self._name} has been at work for {LONG_SECONDS:g} s, and nobody watches the "
                    "run meanwhile; Ctrl-C interrupts it",
                    file=sys.stderr,
                    flush=True,
                )


def _reason(answer: object) -> str:
    """What a callback's answer says why the run stops. A comparison of arrays answers with NumPy's own True."""
    if isinstance(answer, str):
        return checked_reason(answer) if answer else ""
    return "callback" if isinstance(answer, bool | np.bool_) and answer else ""


def _episodes(values: Mapping[str, Any]) -> EndedEpisodes:
    returns = list(values["returns"])
    return EndedEpisodes(
        int(values.get("count", len(returns))), returns, list(values["lengths"]), told_spreads(values.get("metrics"))
    )


def _evaluation(values: Mapping[str, Any]) -> EvaluationReport:
    return EvaluationReport(
        mean=float(values["mean"]),
        std=float(values["std"]),
        returns=list(values["returns"]),
        env_steps=int(values.get("env_steps", 0)),
        updates=int(values.get("updates", 0)),
        weights=values.get("weights", ""),
        metrics=told_spreads(values.get("metrics")),
    )
