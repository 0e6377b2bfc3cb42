"""Trained agents in a folder or a repository of the Hugging Face hub: their weights, settings, scores and card."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from apexrl.config import convert
from apexrl.errors import ConfigError, LinkError
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.metrics import read_rows

HUB: Final = "hf:"
CARD: Final = "README.md"
FILMS: Final = "videos"
_BEST: Final = f"checkpoints/{checkpoint.BEST}"
_READ: Final = ("config.toml", "env_spec.json", "summary.json", _BEST)
"""What is taken from a repository: no code, and no pickle."""
_PRIVATE: Final = ("error", "hosts", "given_up")
"""Of a summary: texts that may name machines and folders."""
_LAST_BYTES = 4 << 20  # of metrics.jsonl, with the final evaluations
_REPOSITORY = re.compile(r"hf:([\w.-]{1,96}/[\w.-]{1,96})(?:@([\w./-]{1,100}))?")


class Repository(NamedTuple):
    """``hf:USER/NAME``, or ``hf:USER/NAME@REVISION``."""

    name: str
    revision: str | None


def repository(where: str) -> Repository:
    """Raises ConfigError where it is none."""
    found = _REPOSITORY.fullmatch(where)
    if found is None or ".." in where:
        raise ConfigError(f"{where!r} is no repository: write hf:USER/NAME, or hf:USER/NAME@REVISION")
    return Repository(found[1], found[2])


def final_returns(folder: RunFolder) -> list[float]:
    """The returns of the final evaluation of a run's best weights.

    Raises:
        ConfigError: there was none; the message says what to do.
    """
    rows = read_rows(folder.metrics_path, _LAST_BYTES) if folder.metrics_path.is_file() else []
    finals = [row for row in rows if row.get("kind") == "evaluation" and row.get("final") and row.get("returns")]
    best = [row for row in finals if row.get("weights", "best") == "best"]
    if not best or checkpoint.best(folder.checkpoints) is None:
        raise ConfigError(
            f"{folder.path} has no final evaluation, so nobody knows how well its weights do. A run has one when it "
            f"ends by itself: apexrl resume {folder.path} --env-steps N (an interrupted run leaves it out)"
        )
    return [float(value) for value in best[-1]["returns"]]


def gather(folder: RunFolder, to: Path, summary: Mapping[str, Any]) -> None:
    """Put what is published into ``to``, a new or empty folder, which then is a run folder that can be evaluated.

    Raises:
        ConfigError: there is something in it.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} is not empty: give a new folder")
    (to / "checkpoints").mkdir(parents=True)
    config = dataclasses.replace(folder.config(), out="runs")  # where it lay is nobody's business
    (to / "config.toml").write_text(convert.to_toml(config), encoding="utf-8")
    told = {name: value for name, value in summary.items() if name not in _PRIVATE}
    (to / "summary.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(folder.checkpoints / checkpoint.BEST, to / _BEST)
    for name in ("env_spec.json", "learning_curve.png"):
        if (folder.path / name).is_file():
            shutil.copyfile(folder.path / name, to / name)


def put(folder: Path, to: Path) -> Path:
    """Copy what was gathered to a new or empty folder; all of it, or nothing. Returns that folder.

    Raises:
        ConfigError: there is something in it, or it cannot be written.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} is not empty: give a new folder")
    try:
        shutil.copytree(folder, to, dirs_exist_ok=True)
    except OSError as error:  # of copytree's own, the first of many is enough
        shutil.rmtree(to, ignore_errors=True)  # half of it would pass for an agent
        said = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        raise ConfigError(f"cannot publish in {to}: {said}") from error
    return to


def upload(folder: Path, where: str, private: bool) -> str:
    """Upload a folder as one commit; the repository is made if it is not there. Returns its URL.

    The hub's own settings say who uploads: ``HF_TOKEN``, or ``hf auth login``.

    Raises:
        LinkError: the hub cannot be reached, or refuses.
        ModuleNotFoundError: the extra ``hub`` is not installed.
    """
    hub: Any = importlib.import_module("huggingface_hub")
    name = repository(where).name
    try:
        api = hub.HfApi()
        url = api.create_repo(repo_id=name, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=str(folder), commit_message="Publish an agent of apexrl")
    except Exception as error:
        raise LinkError(f"{where} could not be published: {type(error).__name__}: {error}") from error
    return str(url)


def fetch(where: str, out: Path) -> Path:
    """Bring what evaluation needs of ``hf:USER/NAME`` to a folder below ``out``; returns it.

    Raises:
        ConfigError: the repository holds no agent of apexrl.
        LinkError: the hub cannot be reached, or refuses.
        ModuleNotFoundError: the extra ``hub`` is not installed.
    """
    hub: Any = importlib.import_module("huggingface_hub")
    name, revision = repository(where)
    folder = out / ("hf-" + where.removeprefix(HUB).replace("/", "--"))  # of no other repository or revision
    try:
        hub.snapshot_download(repo_id=name, revision=revision, local_dir=str(folder), allow_patterns=list(_READ))
    except Exception as error:
        raise LinkError(f"{where} could not be read: {type(error).__name__}: {error}") from error
    if not (folder / "config.toml").is_file() or not (folder / _BEST).is_file():
        raise ConfigError(f"{where} holds no agent of apexrl: config.toml or {_BEST} is missing")
    return folder
