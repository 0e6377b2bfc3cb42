"""What the command and ``train`` understand of a Ray cluster; Ray itself is not needed for that."""

from __future__ import annotations

from typing import Any

import pytest

import apexrl
from apexrl import arguments
from apexrl.errors import ConfigError
from apexrl.launch.ray.wishes import Wishes
from apexrl.presets import preset


def parsed(*words: str) -> Any:
    return arguments.parse_train(list(words), preset("cartpole").config, "cartpole")[1]


def test_flags_become_wishes() -> None:
    assert parsed("--ray", "auto") == Wishes()
    wanted = parsed("--ray", "head:6379", "--actor-cpus", "0.5", "--learner-gpus", "1", "--replay-shards", "3")
    assert wanted == Wishes("head:6379", actor_cpus=0.5, learner_gpus=1.0, replay_shards=3)
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
        (("--learner-gpus", "1.5"), r"--learner-gpus 1\.5: beyond one, Ray gives whole GPUs only"),
    ],
)
def test_resources_that_nobody_has_are_refused_before_anything_starts(words: tuple[str, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parsed("--ray", "local", *words)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"shard_cpus": 0.0}, "Wishes shard_cpus must be more than 0"),
        ({"wait_seconds": -1}, "Wishes wait_seconds must be a number from 0 on, not -1"),
        ({"replay_shards": 1.5}, r"--replay-shards must be a whole number, not 1\.5"),
    ],
)
def test_wishes_say_which_of_them_cannot_be(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Wishes(**wrong)
