"""Sends a run's metrics to an experiment tracker: Weights & Biases, trackio or MLflow."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import sys
import time
import uuid
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

from apexrl.config.convert import flat
from apexrl.errors import ConfigError
from apexrl.run.atomic_files import read_text, replace_text
from apexrl.run.folder import env_name
from apexrl.run.metric_samples import status_scalars
from apexrl.run.observers import IdleObserver
from apexrl.run.status import RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config

Tracker = Literal["wandb", "trackio", "mlflow"]

PERIOD_SECONDS: Final = 10.0
"""Between two reports."""
FILE: Final = "trackers.json"
"""In the run folder: the id of the run with each tracker, for a resume."""

_MOST_FILE_BYTES = 1 << 16
_PROJECT = "apexrl"
_MOST_PARAMS = 100  # of one call, for MLflow's servers


class _Session(Protocol):
    """One run with one tracker."""

    id: str

    def log(self, values: dict[str, float], step: int) -> None: ...
    def close(self, summary: dict[str, Any]) -> None: ...


class TrackerExport(IdleObserver):
    """An observer that reports the newest status every ten seconds, and once more at the end; by environment steps.

    It ``writes``: it is called in a thread of its own, and a tracker that fails or does not answer is told of once,
    counted, and ends no run. Servers, keys and projects are the library's own settings: ``WANDB_MODE``,
    ``WANDB_PROJECT``, ``MLFLOW_TRACKING_URI`` …

    Raises:
        ConfigError: there is none of that name.
            Or Weights & Biases has no key: its library would ask for one in the middle of the run.
        ModuleNotFoundError: its library is not installed.
    """

    def __init__(self, name: str) -> None:
        if name not in get_args(Tracker):
            raise ConfigError(f"--tracker {name!r} is none of {', '.join(get_args(Tracker))}")
        self.writes = f"the tracker {name}"
        self._name = name
        self._library: Any = importlib.import_module(name)
        if (
            name == "wandb"
            and self._library.setup().settings.mode == "online"
            and not self._library.login(prompt=False)
        ):
            raise ConfigError("--tracker wandb has no key: run `wandb login` first, or set WANDB_MODE=offline")
        self._session: _Session | None = None
        self._begin: tuple[Config, Path] | None = None
        self._status: RunStatus | None = None
        self._due = -math.inf

    def started(self, config: Config, folder: Path) -> None:
        self._begin = config, folder
        self._open()

    def update(self, status: RunStatus) -> None:
        self._status = status
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + PERIOD_SECONDS
            self._report(status)

    def finished(self, summary: dict[str, Any]) -> None:
        if self._status is not None:
            self._report(self._status)
        if self._session is not None:
            self._guarded(self._session.close, summary)

    def _report(self, status: RunStatus) -> None:
        session = self._session or self._open()
        values = {name: float(value) for name, value in status_scalars(status).items() if value is not None}
        self._guarded(session.log, values, status.axis_steps)

    def _open(self) -> _Session:
        """Begin, or go on after a resume. Tried again with the next report."""
        assert self._begin is not None, "an observer is told that the run begins"
        config, folder = self._begin
        known = _known(folder)
        make = _MlflowSession if self._name == "mlflow" else _WandbSession
        session: _Session = self._guarded(make, self._library, config, folder, known.get(self._name, ""))
        if known.get(self._name) != session.id:
            replace_text(folder / FILE, json.dumps({**known, self._name: session.id}) + "\n")
        self._session = session
        return session

    def _guarded(self, call: Any, *args: Any) -> Any:
        """Any failure of the library as an OSError, which is told, counted, and tried again."""
        try:
            return call(*args)
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


class _WandbSession:
    """With Weights & Biases, or with trackio, which has the same interface."""

    def __init__(self, library: Any, config: Config, folder: Path, known: str) -> None:
        project = os.environ.get(f"{library.__name__.upper()}_PROJECT", _PROJECT)
        settings = {name: _plain(value) for name, value in flat(config).items()}
        more: dict[str, Any] = {}
        if library.__name__ == "wandb":
            self.id = known or uuid.uuid4().hex
            quiet = library.Settings(silent=True, console="off")
            more = {"id": self.id, "dir": str(folder), "group": env_name(config), "settings": quiet}
            self._run = library.init(project=project, name=folder.name, config=settings, resume="allow", **more)
        else:
            self.id = known or f"{folder.name}-{uuid.uuid4().hex[:6]}"  # trackio knows runs by their names
            with redirect_stdout(sys.stderr):  # it prints, and a run prints its folder alone
                self._run = library.init(project=project, name=self.id, config=settings, resume="allow", embed=False)

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self, summary: dict[str, Any]) -> None:
        self._run.finish()


class _MlflowSession:
    """With MLflow: a server's URL in ``MLFLOW_TRACKING_URI``, else files in the run folder."""

    def __init__(self, library: Any, config: Config, folder: Path, known: str) -> None:
        server = os.environ.get("MLFLOW_TRACKING_URI")
        if not server:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # its database needs more packages than the client
        # not by set_tracking_uri, which sets the variable, too: the next run of this process would get these files
        self._client = library.MlflowClient(tracking_uri=server or (folder / "mlruns").resolve().as_uri())
        self._entities = importlib.import_module("mlflow.entities")
        if known:
            self.id = known
            self._client.update_run(known, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(name)
        self.id = str(self._client.create_run(experiment, run_name=folder.name).info.run_id)
        params = [self._entities.Param(name, str(_plain(value))[:500]) for name, value in flat(config).items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self.id, params=params[first : first + _MOST_PARAMS])

    def log(self, values: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        named = [(re.sub(r"[^\w./ :-]", "_", name), value) for name, value in values.items()]
        metrics = [self._entities.Metric(name, value, now, step) for name, value in named]
        self._client.log_batch(self.id, metrics=metrics)

    def close(self, summary: dict[str, Any]) -> None:
        ended = {"error": "FAILED", "interrupted": "KILLED"}
        self._client.set_terminated(self.id, ended.get(str(summary.get("stopped_by")), "FINISHED"))


def _known(folder: Path) -> dict[str, str]:
    """The run's id with each tracker, if it was with one before."""
    try:
        told = json.loads(read_text(folder / FILE, _MOST_FILE_BYTES))
    except (OSError, ValueError):
        return {}
    pairs = told.items() if isinstance(told, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str) and re.fullmatch(r"[\w.+=@-]{1,200}", value)}


def _plain(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return getattr(value, "__qualname__", str(value))
