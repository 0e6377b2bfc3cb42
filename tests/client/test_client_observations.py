from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from apexrl.client.observations import named_observation
from apexrl.errors import SpecError
from apexrl.spec import LAST_ACTION, LAST_REWARD, ActionSpec, EnvSpec, Field

ACTION = ActionSpec(n=2)
BOX = EnvSpec({"observation": Field((2,), "float32")}, ACTION)
NESTED = EnvSpec({"observation/eye": Field((2, 2), "uint8"), "observation/body/speed": Field((), "float32")}, ACTION)
DISCRETE = EnvSpec(
    {"observation": Field((), "int64")}, ACTION, categories={"observation": 3}, starts={"observation": 5}
)


def test_one_observation_gets_a_batch_axis_and_is_copied() -> None:
    given = np.array([1.0, 2.0])
    named = named_observation(BOX, given)
    given[:] = 0
    assert named["observation"].dtype == np.float32
    assert named["observation"].tolist() == [[1.0, 2.0]]
    assert named_observation(BOX, np.zeros(2, np.float32))["observation"].flags.owndata


def test_lists_and_whole_numbers_become_floats() -> None:
    assert named_observation(BOX, [1, 2])["observation"].tolist() == [[1.0, 2.0]]


def test_nested_dicts_are_named_by_their_keys() -> None:
    named = named_observation(NESTED, {"eye": np.full((2, 2), 255), "body": {"speed": 0.5}})
    assert {name: value.shape for name, value in named.items()} == {
        "observation/eye": (1, 2, 2),
        "observation/body/speed": (1,),
    }
    assert named["observation/eye"].dtype == np.uint8
    assert (named["observation/eye"] == 255).all()


def test_discrete_observations_count_from_0_inside() -> None:
    assert named_observation(DISCRETE, 7)["observation"].tolist() == [2]
    assert named_observation(DISCRETE, np.int8(5))["observation"].tolist() == [0]


def test_a_program_is_told_to_show_the_previous_action_and_reward_too() -> None:
    spec = EnvSpec({name: Field((1,), "float32") for name in ("observation/obs", LAST_ACTION, LAST_REWARD)}, ACTION)
    with pytest.raises(SpecError, match=r"wrap your environment in apexrl\.envs\.LastActionReward"):
        named_observation(spec, [0.0])
    with pytest.raises(SpecError, match=r"has \['observation/last_action', .*\]$"):
        named_observation(BOX, {"obs": [0.0], "last_action": [0.0], "last_reward": [0.0]})


@pytest.mark.parametrize(
    ("spec", "observation", "words"),
    [
        (BOX, np.zeros((1, 2)), r"observation has shape \[1, 2\]; this run's environment has \[2\]"),
        (BOX, [[1.0], [2.0, 3.0]], "observation is not an array"),
        (BOX, {"eye": 0}, r"observations are \['observation'\], but this one has \['observation/eye'\]"),
        (BOX, np.array([1.0, np.nan]), "observation holds NaN"),
        (BOX, np.array([1.0, -np.inf]), "observation holds NaN, infinity"),
        (BOX, np.array([1.0, 1e300]), "too large for float32"),
        (BOX, np.array(["1", "2"]), "observation has dtype <U1"),
        (BOX, None, "observation has shape"),
        (NESTED, np.zeros((2, 2)), r"but this one has \['observation'\]"),
        (NESTED, {"eye": np.zeros((2, 2))}, "but this one has"),
        (NESTED, {"eye": np.full((2, 2), 256), "body": {"speed": 0.0}}, "eye holds 256; it must be between 0 and 255"),
        (NESTED, {"eye": np.full((2, 2), -1), "body": {"speed": 0.0}}, "eye holds -1; it must be between 0 and 255"),
        (NESTED, {"eye": np.zeros((2, 2), "f4"), "body": {"speed": 0.0}}, "eye has dtype float32, which .* uint8"),
        (DISCRETE, 4, "observation holds 4; it must be between 5 and 7"),
        (DISCRETE, 8, "observation holds 8; it must be between 5 and 7"),
        (DISCRETE, 6.0, "observation has dtype float64"),
    ],
)  # fmt: skip
def test_what_is_not_of_the_runs_environment_is_refused_by_name(spec: EnvSpec, observation: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        named_observation(spec, observation)
