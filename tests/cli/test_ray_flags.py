"""What the command and ``train`` understand of a Ray cluster; Ray itself is not needed for that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import apexrl
from apexrl import api
from apexrl.cli import flags, resume_flags, train_flags
from apexrl.config import Config
from apexrl.config.placement import Ray, Redis
from apexrl.errors import ConfigError
from apexrl.launch.ray.resources import HERE, in_range, remember, resumed
from apexrl.presets import preset
from new_folders import new_folder


def parsed(*words: str) -> Any:
    return train_flags.parse_train(list(words), preset("cartpole").config, "cartpole")[1]


def test_flags_become_wishes() -> None:
    assert parsed("--ray", "auto") == Ray()
    wanted = parsed("--ray", "head:6379", "--actor-cpus", "0.5", "--learner-gpus", "1", "--replay-shards", "3")
    assert wanted == Ray("head:6379", actor_cpus=0.5, learner_gpus=1.0, replay_shards=3)
    assert parsed("--ray", "auto", "--inference-gpus", "0.25") == Ray(inference_gpus=0.25)
    assert parsed() is None


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--actor-cpus", "0.5"), "--actor-cpus means nothing without --ray"),
        (("--replay-shards", "2"), "--replay-shards means nothing without --ray"),
        (("--ray", "auto", "--redis", "redis://x", "--run", "y"), "give one of them"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parsed(*words)


def test_train_refuses_two_ways_at_once() -> None:
    with pytest.raises(ConfigError, match="ray= runs on a cluster"):
        apexrl.train("cartpole", ray="auto", redis="redis://x", run="y", show=False)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--replay-shards", "-1"), "--replay-shards must be a number from 0 on, not -1"),
        (("--actor-cpus", "-0.5"), "--actor-cpus must be a number from 0 on, not -0.5"),
        (("--actor-cpus", "nan"), "--actor-cpus must be a number from 0 on"),
        (("--inference-gpus", "2.5"), r"--inference-gpus 2\.5: beyond one, Ray gives whole GPUs only"),
        (("--learner-gpus", "1.5"), r"--learner-gpus 1\.5: beyond one, Ray gives whole GPUs only"),
    ],
)
def test_resources_that_nobody_has_are_refused_before_anything_starts(words: tuple[str, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parsed("--ray", "local", *words)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"shard_cpus": 0.0}, "Ray shard_cpus must be more than 0"),
        ({"wait_seconds": -1}, "Ray wait_seconds must be a number from 0 on, not -1"),
        ({"replay_shards": 1.5}, r"--replay-shards must be a whole number, not 1\.5"),
    ],
)
def test_wishes_say_which_of_them_cannot_be(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Ray(**wrong)


def test_a_range_of_actors_is_the_least_and_the_slots() -> None:
    for words in (("--actors", "2:8"), ("--actors=2:8",)):
        config = train_flags.parse_train(["--ray", "auto", *words], preset("cartpole").config, "cartpole")[0]
        assert (config.actor.actors, config.actor.actor_slots) == (2, 8)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--actors", "2:8"), "means nothing without --ray.*--actors 2 --autotune --actor-slots 8"),
        (("--ray", "auto", "--actors", "2:8", "--actor-slots", "9"), "leave out --actor-slots"),
        (("--ray", "auto", "--actors", "8:2"), "--actors 8:2 begins with at least 1 actor, and ends with no fewer"),
        (("--ray", "auto", "--actors", "0:2"), "--actors 0:2 begins with at least 1"),
        (("--ray", "auto", "--actors", "2:many"), "--actors 2:many is neither a number nor MIN:MAX"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(words: tuple[str, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parsed(*words)


def test_train_understands_a_range_on_a_cluster_alone() -> None:
    assert in_range({"actors": "2:8", "seed": 3}, ray=True) == {"actors": 2, "actor_slots": 8, "seed": 3}
    assert in_range({"actors": 4}, ray=False) == {"actors": 4}
    with pytest.raises(ConfigError, match="means nothing without ray="):
        apexrl.train("cartpole", actors="2:8", show=False)
    with pytest.raises(ConfigError, match="leave out actor_slots="):
        apexrl.train("cartpole", ray="auto", actors="2:8", actor_slots=9, show=False)


def test_a_resumed_run_wants_what_it_wanted_but_for_what_is_given(tmp_path: Path) -> None:
    before = Ray("127.0.0.1:6379", actor_cpus=0.5, learner_gpus=1.0, replay_shards=3, wait_seconds=60.0)
    remember(before, tmp_path)
    assert resumed(tmp_path, "") == before
    assert resumed(tmp_path, "auto") == replace(before, address="auto")
    assert resumed(tmp_path, "", replay_shards=2, actor_cpus=None) == replace(before, replay_shards=2)
    assert resumed(tmp_path, HERE) is None
    with pytest.raises(ConfigError, match="--replay-shards must be a number from 0 on, not -2"):
        resumed(tmp_path, "", replay_shards=-2)


def test_a_run_that_was_on_no_cluster_is_resumed_on_one_if_it_is_said(tmp_path: Path) -> None:
    assert resumed(tmp_path, "") is None
    assert resumed(tmp_path, "auto", actor_cpus=2.0) == Ray("auto", actor_cpus=2.0)
    with pytest.raises(ConfigError, match="--actor-cpus means nothing without --ray"):
        resumed(tmp_path, "", actor_cpus=2.0)


@pytest.mark.parametrize("text", ["", "[]", '{"address": "auto", "many": 1}', '{"actor_cpus": "two"}'])
def test_a_note_that_cannot_be_read_is_said_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "placement.json").write_text(text)
    with pytest.raises(ConfigError, match=r"placement\.json cannot be read .*: delete it, and say --ray again"):
        resumed(tmp_path, "")


def test_the_flags_of_resume_are_told_apart(tmp_path: Path) -> None:
    remember(Ray("auto", actor_cpus=0.5), tmp_path)

    def placement(*words: str) -> Any:
        return resume_flags.resume_placement(
            flags.parse(resume_flags.Resume, [str(tmp_path), *words], "resume"), tmp_path
        )

    assert placement() == Ray("auto", actor_cpus=0.5)
    assert placement("--ray", "local", "--learner-gpus", "1") == Ray("local", actor_cpus=0.5, learner_gpus=1.0)
    assert placement("--ray", "none") is None
    assert placement("--redis", "redis://x") == Redis("redis://x", "", actors=None)
    with pytest.raises(ConfigError, match="--ray runs on a cluster"):
        placement("--ray", "auto", "--redis", "redis://x")


def test_a_run_is_resumed_where_it_was_from_python_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_folder(Config(name="run", out=str(tmp_path)))
    remember(Ray("127.0.0.1:6379", actor_cpus=0.5), folder.path)
    met: list[Any] = []
    monkeypatch.setattr(api, "_run", lambda config, placement, **_: met.append((config.actor, placement)))
    apexrl.resume(folder.path, show=False, actors="3:5")
    apexrl.resume(folder.path, show=False, ray="none")
    apexrl.resume(folder.path, show=False, ray=Ray("local"))
    assert [placement for _, placement in met] == [Ray("127.0.0.1:6379", actor_cpus=0.5), None, Ray("local")]
    assert (met[0][0].actors, met[0][0].actor_slots) == (3, 5)
    with pytest.raises(ConfigError, match="ray= runs on a cluster"):
        apexrl.resume(folder.path, show=False, ray="auto", redis="redis://x")
