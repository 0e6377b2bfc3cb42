"""What trackers get of a run: by their own libraries where these are installed, else by stand-ins of the same calls."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.launch.contained_observers import Contained
from apexrl.report import tracker
from apexrl.report.tracker import FILE, TrackerExport
from apexrl.run.episode_metrics import Spread
from apexrl.run.status import RunStatus

STATUS = RunStatus(env_steps=500, train_return=9.5, episode_metrics={"won": Spread(4, 0.5, 0.0, 1.0)})


class Stand(ModuleType):
    """The calls of wandb, trackio and mlflow that are made."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[dict[str, float], int]] = []
        self.ended: list[str] = []
        self.uris: list[str] = []
        self.broken = False
        self.Settings = lambda **settings: settings
        self.key = True
        self.entities = SimpleNamespace(
            Metric=lambda key, value, timestamp, step: (key, value, step), Param=lambda key, value: (key, value)
        )

    def setup(self) -> Any:
        return SimpleNamespace(settings=SimpleNamespace(mode="online"))

    def login(self, prompt: bool) -> bool:
        assert not prompt
        return self.key

    def init(self, **given: Any) -> Any:
        if self.broken:
            raise RuntimeError("no such key")
        self.begun.append(given)
        return SimpleNamespace(log=self._log, finish=lambda: self.ended.append("FINISHED"))

    def _log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((values, step))

    def MlflowClient(self, tracking_uri: str) -> Any:
        self.uris.append(tracking_uri)
        return SimpleNamespace(
            get_experiment_by_name=lambda name: None,
            create_experiment=lambda name: "1",
            create_run=self._create,
            update_run=lambda run, status: self.begun.append({"id": run}),
            log_batch=self._log_batch,
            set_terminated=lambda run, status: self.ended.append(status),
        )

    def _log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100
        self.begun[-1].update(params)
        if metrics:
            self._log({key: value for key, value, _ in metrics}, metrics[0][2])

    def _create(self, experiment: str, run_name: str) -> Any:
        self.begun.append({"run_name": run_name})
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))


@pytest.fixture(params=["wandb", "trackio", "mlflow"])
def stand(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stand:
    found = Stand(request.param)
    monkeypatch.setitem(sys.modules, found.__name__, found)
    monkeypatch.setitem(sys.modules, f"{found.__name__}.entities", found.entities)  # type: ignore[arg-type]
    for name in ("WANDB_PROJECT", "TRACKIO_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return found


def follow(name: str, folder: Path, summary: dict[str, Any]) -> Contained:
    """A run that one observer sees."""
    observer = Contained(TrackerExport(name))
    observer.started(Config(name="run", seed=3), folder)
    observer.update(STATUS)
    observer.finished(summary)
    observer.settle(time.monotonic() + 60.0)
    return observer


def test_settings_and_metrics_arrive_and_a_resumed_run_is_the_same(stand: Stand, tmp_path: Path) -> None:
    for stopped_by in ("env_steps", "error"):
        assert follow(stand.__name__, tmp_path, {"stopped_by": stopped_by}).lost == 0
    first, second = stand.begun
    assert str(first.get("config", first)["seed"]) == "3"
    values, step = stand.logged[0]
    assert step == 500
    assert (values["train_return"], values["episode/won_max"]) == (9.5, 1.0)
    assert all(isinstance(value, float) for value in values.values())
    assert len(stand.ended) == 2
    known = json.loads((tmp_path / FILE).read_text())[stand.__name__]
    assert known in second.values()
    assert stand.uris == ([(tmp_path / "mlruns").as_uri()] * 2 if stand.__name__ == "mlflow" else [])


def test_a_tracker_that_fails_is_told_of_and_tried_again(stand: Stand, tmp_path: Path) -> None:
    stand.broken = True
    if stand.__name__ == "mlflow":
        stand.MlflowClient = None  # type: ignore[assignment,method-assign]
    observer = follow(stand.__name__, tmp_path, {})
    assert observer.lost == 3
    (news, *_) = observer.news(0.0)
    assert news[0].startswith(f"the tracker {stand.__name__}: ")
    assert "The run goes on, and it is tried again" in news[0]


def test_runs_of_one_process_have_mlflows_files_each_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed (extra mlflow)")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert follow("mlflow", tmp_path / name, {"stopped_by": "env_steps"}).lost == 0
        assert list((tmp_path / name / "mlruns").rglob("train_return"))


def test_files_of_strangers_name_no_odd_runs(tmp_path: Path) -> None:
    for text in ('{"wandb": "../x y"}', "[]", "{", '{"wandb": 5}'):
        (tmp_path / FILE).write_text(text)
        assert tracker._known(tmp_path) == {}


def test_without_a_key_weights_and_biases_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand("wandb")
    stand.key = False
    monkeypatch.setitem(sys.modules, "wandb", stand)
    with pytest.raises(ConfigError, match="wandb login"):
        TrackerExport("wandb")


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ConfigError, match="--tracker 'neptune' is none of wandb, trackio, mlflow"):
        TrackerExport("neptune")


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_the_library_itself_takes_it_offline(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (extra {name})")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert follow(name, tmp_path, {"stopped_by": "env_steps"}).lost == 0
    assert json.loads((tmp_path / FILE).read_text())[name]
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != FILE]
    assert kept, "the library keeps what it was told"
