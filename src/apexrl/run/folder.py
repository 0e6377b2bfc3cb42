"""A run folder and the files in it.

runs/NAME/
  config.toml          every setting; ``apexrl train runs/NAME/config.toml`` runs it again
  env_spec.json        observations and actions, so that an agent loads without its environment
  metrics.jsonl        one JSON object a line: status, evaluations, messages
  events.out.tfevents… the same for TensorBoard
  checkpoints/         generation-L-update-N.safetensors (all state), best.safetensors (weights); JSON beside each
  lock                 held by the process that trains the run; names it
  actors.json          how many actors ``apexrl scale`` has ordered
  generations.json           the newest generation of the run, and of each role that writes checkpoints
  learning_curve.png
  policy_lag.png       policy lag of the steps learned from
  autotune.png         with --autotune: the settings tried and their throughput
  hosts.json           of a run over several hosts: its name and id on the Redis server
  ray.json             of a run on Ray: the cluster's address, and the run's namespace there
  placement.json       of a run on Ray: its address and resources, for a resume
  summary.json         written last
"""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from apexrl.config import Config, convert
from apexrl.config.paths import absolute, expanded
from apexrl.config.settings import did_you_mean
from apexrl.errors import ConfigError, SnapshotError, SpecError
from apexrl.run.atomic_files import read_text, replace_text
from apexrl.run.ownership import Generations
from apexrl.run.spec_json import spec_from_json, spec_to_json
from apexrl.run.status import RunStatus
from apexrl.spec import EnvSpec

StopReason = str
"""``env_steps``, ``updates``, ``minutes``, ``stop_at_return``, ``callback``, ``interrupted`` or ``error``. In runs over
several hosts also ``stopped`` (from afar), and on an actor host ``finished`` (the learner), ``replaced`` or ``lost
slots``."""


_MOST_CONFIG_BYTES = 4 << 20
_MOST_JSON_BYTES = 16 << 20
_SHOWN = 3  # runs, in an error


class RunFolder:
    """One run's folder. Make one with ``make`` or ``open``."""

    def __init__(self, path: Path) -> None:
        self.path = absolute(Path(path))
        self.generations = Generations(self.path)
        self.config_path = self.path / "config.toml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.summary_path = self.path / "summary.json"
        self.hosts_path = self.path / "hosts.json"
        """The run's name and id on a Redis server, if it was on one."""
        self.ray_path = self.path / "ray.json"
        """The last Ray cluster of the run."""
        self.curve_path = self.path / "learning_curve.png"
        self.autotune_path = self.path / "autotune.png"
        self.lag_path = self.path / "policy_lag.png"
        self.checkpoints = self.path / "checkpoints"
        self.replay_path = self.checkpoints / "replay"
        """The replay's snapshot, with ``--save-replay``."""

    @classmethod
    def make(cls, config: Config) -> RunFolder:
        """Make a new folder with nothing in it. If the name is taken, a number is added to it.

        Raises:
            ConfigError: the folder cannot be made.
        """
        name = config.name or default_name(config)
        convert.to_toml(config)  # refused before there is a folder
        out = expanded(config.out)
        try:
            return cls(_make_unique(absolute(out), name))
        except FileExistsError as error:
            what = "a link to what is not there" if out.is_symlink() else "a file"
            raise ConfigError(f"cannot write a run folder in --out {out}: it is {what}") from error
        except OSError as error:
            raise ConfigError(f"cannot write a run folder in --out {out}: {error.strerror or error}") from error

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run folder.

        Raises:
            ConfigError: there is no run at ``path``.
        """
        path = expanded(path)
        if not (path / "config.toml").is_file():
            if path.is_file():
                raise ConfigError(f"{path} is a file: give the folder of a run, as {path.parent}")
            what = "there is no such folder" if not path.is_dir() else "it holds no config.toml"
            if (path / "config.toml").is_dir():
                what = "its config.toml is a folder"
            raise ConfigError(f"{path} is not a run folder: {what}.{_runs_nearby(path)}")
        return cls(path)

    def out(self, config: Config) -> str:
        """Where the folder lies, as ``--out``: as ``config`` says it, if it says this."""
        parent = self.path.parent
        return config.out if absolute(expanded(config.out)) == parent else str(parent)

    def check_links(self) -> None:
        """Refuse a folder with a link to outside, where a run would write.

        Raises:
            ConfigError: names the link.
        """
        home = self.path.resolve()
        for folder in (self.path, self.checkpoints, self.path / "logs"):
            for entry in folder.iterdir() if folder.is_dir() else ():
                if entry.is_symlink() and not entry.resolve().is_relative_to(home):
                    raise ConfigError(
                        f"{entry} leads out of the run folder, to {entry.resolve()}, and a run would write there: "
                        "put what it leads to in its place. If you made that link for the room, move the whole run "
                        "folder there: a link may lead to that"
                    )

    def config(self) -> Config:
        """The configuration with which the run was started, or resumed last.

        Raises:
            ConfigError: ``config.toml`` cannot be read, or is empty, as no run writes it.
        """
        try:
            text = read_text(self.config_path, _MOST_CONFIG_BYTES)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.config_path} cannot be read ({error})") from error
        if all(line.startswith("#") for line in map(str.strip, text.splitlines()) if line):
            raise ConfigError(f"{self.config_path} holds no setting: put back the one that the run wrote")
        return convert.from_toml(text, str(self.config_path))

    def write_config(self, config: Config) -> None:
        """Write ``config.toml`` atomically; it makes the folder a run folder."""
        replace_text(self.config_path, convert.to_toml(config, _header()))

    def record_config(self, config: Config) -> None:
        """Write ``config.toml`` again if a resumed run has other settings than it holds.

        Raises:
            FencedError: another process has started a newer generation of the run.
        """
        if convert.to_toml(config) != convert.to_toml(self.config()):
            replace_text(self.config_path, convert.to_toml(config, _header()), self.generations.check)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json`` atomically; NaN and infinity become null.

        Raises:
            FencedError: another process has started a newer generation of the run.
        """
        _replace_json(self.summary_path, summary, self.generations.check)

    def summary(self) -> dict[str, Any]:
        """The last summary; empty when the run has not ended yet."""
        if not self.summary_path.is_file():
            return {}
        try:
            return _read_json(self.summary_path)
        except SnapshotError as error:
            raise SnapshotError(f"{error}: delete it, and the run counts as one that has not ended") from error

    def write_spec(self, spec: EnvSpec) -> None:
        """Write the environment's observations and actions (``env_spec.json``)."""
        _replace_json(self.path / "env_spec.json", spec_to_json(spec), self.generations.check)

    def spec(self) -> EnvSpec | None:
        """The spec that ``write_spec`` wrote; None: there is none."""
        path = self.path / "env_spec.json"
        if not path.is_file():
            return None
        try:
            return spec_from_json(_read_json(path))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, SpecError) as error:
            raise SnapshotError(
                f"{path} does not describe an environment ({error}): delete it; it will be written again"
            ) from error


def default_name(config: Config) -> str:
    """Preset or environment, date and time: ``cartpole-20260131-142355``."""
    subject = config.preset or env_name(config)
    plain = re.sub(r"[^\w.-]+", "-", subject.rpartition(":")[2]).strip("-") or "run"
    return f"{plain.lower()}-{datetime.now():%Y%m%d-%H%M%S}"


def env_name(config: Config) -> str:
    """The environment in words: its id, or ``module:qualname`` of a callable."""
    env = config.env.env
    return env if isinstance(env, str) else convert.describe_callable(env)


def make_summary(
    config: Config,
    status: RunStatus,
    *,
    stopped_by: StopReason,
    finals: Mapping[str, Mapping[str, Any]] | None = None,
    carried: Mapping[str, Any] | None = None,
    tuned: Mapping[str, Any] | None = None,
    given_up: Sequence[str] = (),
    actors: int = 0,
    error: str | None = None,
) -> dict[str, Any]:
    """The contents of ``summary.json``, from the last status of a run; ``finals``: the final evaluations, of
    the ``best`` and of the ``last`` weights; ``carried``: totals of the traffic between hosts; ``tuned``: the result of
    auto-tuning; ``given_up``: workers that were not restarted any more; ``actors``: that served here at
    the end.

    ``wall_seconds`` is training: from the first environment step to the stop. Rates are averages over it.
    ``policy_lag`` is that of all steps learned from: ``steps`` of them, ``histogram``: least lag of a bin -> steps.
    """
    wall = status.elapsed_seconds
    best, last = ((finals or {}).get(weights, {}) for weights in ("best", "last"))
    summary: dict[str, Any] = {
        "preset": config.preset,
        "recipe": config.recipe,
        "topology": config.topology,
        "agent": config.agent.agent,
        "env": env_name(config),
        "seed": config.seed,
        "env_steps": status.env_steps,
        "updates": status.updates,
        "episodes": status.episodes,
        "wall_seconds": round(wall, 3),
        "startup_seconds": round(status.startup_seconds, 3),
        "env_steps_per_second": round(status.env_steps / wall, 2) if wall > 0 else 0.0,
        "updates_per_second": round(status.updates / wall, 2) if wall > 0 else 0.0,
        "samples_per_insert": round(status.samples_per_insert, 4),
        "updates_per_step": round(status.updates_per_step, 6),
        "policy_lag": {
            **status.policy_lag._asdict(),
            "steps": sum(status.lag_histogram.values()),
            "histogram": {str(least): count for least, count in status.lag_histogram.items()},
        },
        "lag_wait_seconds": round(status.lag_wait_seconds, 3),
        "train_return": status.train_return,
        "best_eval_return": status.best_eval_return,
        "final_eval_return": best.get("mean"),
        "final_eval_episodes": int(best.get("episodes", 0)),
        "last_weights_return": last.get("mean"),
        "last_weights_episodes": int(last.get("episodes", 0)),
        "stopped_by": stopped_by,
        "restarts": dict(status.restarts),
        "dropped": dict(status.dropped),
        "versions": versions(),
    }
    if carried:
        summary["hosts"] = dict(carried)
    if actors:
        summary["actors"] = actors
    if given_up:
        summary["given_up"] = list(given_up)
    if tuned:
        summary["autotune"] = dict(tuned)
    if error is not None:
        summary["error"] = error
    return summary


def versions() -> dict[str, str | None]:
    """Versions of the packages that affect results, without importing them; None: not installed."""
    found: dict[str, str | None] = {"apexrl": _version("apexrl"), "python": platform.python_version()}
    for name in ("torch", "numpy", "gymnasium"):
        found[name] = _version(name)
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _header() -> str:
    version = _version("apexrl") or "from source"
    return f"Every setting of this run (apexrl {version}). Run it again with:\n  apexrl train config.toml"


def _make_unique(out: Path, name: str) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        path = out / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise ConfigError(f"{out} already holds 9999 runs named {name!r}: choose another --name")


def _runs_nearby(path: Path) -> str:
    if inside := _run_names(path):
        return f" Runs in {path}: {_some(inside)}"
    parent = path.parent if path.parent.is_dir() else Path("runs")
    names = _run_names(parent)
    if hint := did_you_mean(path.name, names):
        return hint
    return f" Runs in {parent}: {_some(names)}" if names else f" There are no runs in {parent}"


def _some(names: list[str]) -> str:
    return ", ".join(["…"] * (len(names) > _SHOWN) + names[-_SHOWN:])


def _run_names(folder: Path) -> list[str]:
    return sorted(entry.parent.name for entry in folder.glob("*/config.toml") if entry.is_file())


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _replace_json(path: Path, values: Mapping[str, Any], check: Callable[[], None]) -> None:
    replace_text(path, json.dumps(_finite(values), indent=2, allow_nan=False) + "\n", check)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_text(path, _MOST_JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise SnapshotError(f"{path} cannot be read ({error})") from error
    if not isinstance(values, dict):
        raise SnapshotError(f"{path} does not hold a JSON object")
    return values
