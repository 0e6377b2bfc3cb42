"""Settings of environments change while a run goes on: in every actor, from the next reset on, and after a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from recording_observer import small

from apexrl.config import Config, EnvConfig, StopConfig
from apexrl.envs import make_vector
from apexrl.errors import CallbackError, ConfigError
from apexrl.launch import launch
from apexrl.links.local.control_board import ControlBoard
from apexrl.run import env_changes
from apexrl.run.callback_observer import CallbackObserver
from apexrl.run.callbacks import Callback, EndedEpisodes, EvaluationReport
from apexrl.run.env_changes import EnvChange
from apexrl.run.metrics import read_rows
from telling_envs import Telling


class Harder(Callback):
    """Sets the level to 2 when the first episodes have ended, and ends the run when episodes of level 2 have."""

    def __init__(self) -> None:
        self.seen: list[EndedEpisodes] = []
        self.changed: list[EndedEpisodes] = []  # reports of no episode that began before the change
        self.evaluated: list[float] = []

    def on_episodes(self, episodes: EndedEpisodes) -> bool:
        self.seen.append(episodes)
        version = episodes.metrics.get("env_version")
        if version is None and len(self.seen) == 1:
            self.run.change_env({"level": 2}, {"bonus": 7})
        if version is not None and version.episodes == episodes.count:
            self.changed.append(episodes)
        return bool(self.changed)

    def on_evaluation(self, evaluation: EvaluationReport) -> None:
        self.evaluated.append(evaluation.metrics["level"].most)


def telling(tmp_path: Path, **changes: Any) -> Config:
    config = small(tmp_path, env=Telling, stop=StopConfig(minutes=1.0))
    changes["replay"] = replace(config.replay, min_size=5000)  # nothing is learned
    return replace(config, env=replace(config.env, info_metrics=("bonus",)), **changes)


@pytest.mark.parametrize("serial", [True, False])
def test_a_change_reaches_every_actor_and_holds_after_a_resume(tmp_path: Path, serial: bool) -> None:
    harder = Harder()
    config = telling(tmp_path, serial=serial)
    if not serial:
        config = replace(config, actor=replace(config.actor, vector="threads"))
    launch(config, [CallbackObserver(harder)])
    assert harder.seen[0].metrics["level"].most == 1.0
    told = harder.changed[0].metrics
    assert (told["level"].least, told["bonus"].least, told["env_version"].most) == (2.0, 7.0, 1.0)
    assert set(harder.evaluated) <= {1.0}  # evaluations stay comparable
    folder = tmp_path / "run"
    assert env_changes.read(folder) == EnvChange(1, {"level": 2}, {"bonus": 7})
    (row,) = [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "env_change"]
    assert (row["version"], row["attributes"]) == (1, {"level": 2})
    if serial:
        again = Harder()
        launch(config, [CallbackObserver(again)], resume=folder)
        assert again.seen[0].metrics["env_version"] == (again.seen[0].count, 1.0, 1.0, 1.0)


class Wrong(Callback):
    def __init__(self, **attributes: Any) -> None:
        self.attributes = attributes

    def on_start(self) -> None:
        self.run.change_env(self.attributes)


@pytest.mark.parametrize(
    ("attributes", "error", "words"),
    [
        ({"levle": 3}, ConfigError, "a callback has changed 'levle' of the environment, and Telling has no such attr"),
        ({"_level": 3}, CallbackError, "'_level' is no attribute that can be changed"),
    ],
)
def test_what_cannot_be_changed_ends_the_run_with_words(
    tmp_path: Path, attributes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        launch(telling(tmp_path, serial=True), [CallbackObserver(Wrong(**attributes))])


def test_vectorised_forms_refuse_a_change() -> None:
    change = EnvChange()
    made = make_vector(EnvConfig(env="CartPole-v1"), 2, 0, changes=lambda: change)
    assert isinstance(made._backend._env.unwrapped, gym.vector.VectorEnv)  # type: ignore[attr-defined]
    made.reset()
    change = EnvChange(1, {"gravity": 5.0})
    with pytest.raises(ConfigError, match="add --no-native-envs"):
        for _ in range(200):
            made.step(np.zeros(2, np.int64))
    made.close()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "nan is no finite number"),
        ({"a": [object()]}, "environments take numbers, texts, lists and dicts"),
        (["os:system"], "'os:system' may name code"),
        ("x" * 5000, "bytes of environment settings; 4096 are the most"),
    ],
)
def test_what_is_no_setting_is_refused(value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        env_changes.encoded(EnvChange(1, {"level": value}), "change_env")


def test_settings_of_strangers_are_checked(tmp_path: Path) -> None:
    for data in (b"", b"[1]", b'{"version": -1, "attributes": {}, "options": {}}', b"\xff", b"{" * 5000):
        with pytest.raises(ConfigError):
            env_changes.decoded(data, "here")
    (tmp_path / env_changes.FILE).write_text('{"version": 1, "attributes": {"__class__": 1}, "options": {}}')
    with pytest.raises(ConfigError, match="'__class__' is no attribute"):
        env_changes.read(tmp_path)
    data = env_changes.encoded(EnvChange(3, {"level": np.float32(2.5)}, {"goal": np.arange(2)}), "here")
    assert env_changes.decoded(data, "here") == EnvChange(3, {"level": 2.5}, {"goal": [0, 1]})


def test_the_board_carries_whole_changes_and_counts_nothing_of_them() -> None:
    board = ControlBoard(2)
    assert (board.env_changes, board.env_change()) == (0, b"")
    board.set_env_change(b"\xff" * env_changes.MOST_BYTES)
    board.set_env_change(b"short")
    assert (board.env_changes, board.env_change()) == (2, b"short")
    board._change[:1] = b"S"  # as a reader may see a part of what is being written
    assert board.env_change() == b""
    assert {board.total(name) for name in ("env_steps", "episodes", "updates")} == {0}
