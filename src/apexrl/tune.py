"""A trainable for Ray Tune, whose searches and schedulers then choose the settings of apexrl's runs.

    import apexrl.tune
    from ray import tune

    tuner = tune.Tuner(
        tune.with_resources(apexrl.tune.trainable("cartpole", env_steps=50_000), {"cpu": 3}),
        param_space={"learning_rate": tune.loguniform(1e-4, 1e-2)},
        tune_config=tune.TuneConfig(metric="return", mode="max", num_samples=30),
    )

Needs the extra ``tune``. ``apexrl sweep`` needs no Ray.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from apexrl import api
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.run import checkpoint
from apexrl.run.callback_observer import CallbackObserver
from apexrl.run.callbacks import Callback, EvaluationReport
from apexrl.run.folder import RunFolder
from apexrl.topologies.validation import validate

__all__ = ["trainable"]

_NAME: Final = "run"
_KEPT: Final = ("config.toml", "env_spec.json", "generations.json", "metrics.jsonl")


def trainable(
    config: Config | str = "", *, env: str | Callable[..., Any] | None = None, **settings: Any
) -> Callable[[dict[str, Any]], None]:
    """A function for ``ray.tune.Tuner``. Each trial is a whole run, with its processes, on the node of its Ray worker.

    Every evaluation is reported: ``return`` (mean of its episodes), ``best_return`` so far, ``env_steps``,
    ``updates`` and ``seconds`` of training; and once more at the end, with ``final_return`` and ``last_return``, of the
    best and of the last weights on fresh seeds. With them come checkpoints, each a run folder for ``apexrl.resume`` and
    ``apexrl.load``. A trial that Tune restores, or gives the checkpoint of another one as population-based training
    does, goes on from there with the settings that it has then.

    Args:
        config, env: as for ``apexrl.train``.
        **settings: of every trial, by their flat names; the trial's own (``param_space``) come on top.

    Returns:
        The function; it takes the flat settings of a trial.
    """

    def train_one(searched: dict[str, Any]) -> None:
        from ray import tune

        out = _place(Path(tune.get_context().get_trial_dir()))
        reports = _Reports()
        saved = tune.get_checkpoint()
        if saved is None:
            given = {**settings, **searched, "name": _NAME, "out": str(out)}
            run = api.train(config, env=env, callbacks=[reports], show=False, **given)
        else:
            folder = RunFolder(out / _NAME)
            with saved.as_directory() as restored:
                shutil.copytree(restored, folder.path)
            run = api.run(_resumed(folder, env, searched), observers=[CallbackObserver(reports)], resume_or_start=True)
        final = {"final_return": run.best_weights_return, "last_return": run.last_weights_return}
        reports.report(RunFolder(run.path), {name: value for name, value in final.items() if value is not None})

    return train_one


def _place(trial: Path) -> Path:
    """A new folder for a run. Not in the trial's own, from which Tune copies files while they change."""
    runs = trial.parents[1] / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{trial.name}-", dir=runs))


def _resumed(folder: RunFolder, env: str | Callable[..., Any] | None, searched: Mapping[str, Any]) -> Config:
    """The configuration with which a restored run goes on; it is written into its folder."""
    config = override(folder.config(), searched)
    if env is not None:
        config = dataclasses.replace(config, env=dataclasses.replace(config.env, env=env))
    config = validate(dataclasses.replace(config, name=_NAME, out=str(folder.path.parent)), searched)
    folder.write_config(config)
    return config


class _Reports(Callback):
    """Reports every evaluation to Tune, with the newest checkpoint where there is a new one."""

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}
        self._reported: Path | None = None  # the last checkpoint

    def on_evaluation(self, evaluation: EvaluationReport) -> None:
        if evaluation.weights:
            return
        status = self.run.status
        best = status.best_eval_return
        self._metrics = {
            "return": evaluation.mean,
            "best_return": evaluation.mean if best is None else max(best, evaluation.mean),
            "env_steps": evaluation.env_steps,
            "updates": evaluation.updates,
            "seconds": status.elapsed_seconds,
        }
        self.report(RunFolder(self.run.folder), {})

    def report(self, folder: RunFolder, more: Mapping[str, float]) -> None:
        """Tell Tune the newest metrics, and ``more``."""
        from ray import tune

        metrics = {**self._metrics, **more}
        newest = checkpoint.latest(folder.checkpoints)
        if newest is None or newest == self._reported:
            tune.report(metrics)
            return
        with tempfile.TemporaryDirectory(dir=folder.path.parent) as made:
            copy_state(folder, Path(made))
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(made))
        self._reported = newest


def copy_state(folder: RunFolder, to: Path) -> None:
    """Copy what a resume needs of a run that may go on meanwhile: older checkpoints give way to newer ones."""
    (to / "checkpoints").mkdir()
    for name in _KEPT:
        if (folder.path / name).is_file():
            shutil.copyfile(folder.path / name, to / name)
    for path in (checkpoint.latest(folder.checkpoints), checkpoint.best(folder.checkpoints)):
        if path is not None:
            shutil.copyfile(path, to / "checkpoints" / path.name)
