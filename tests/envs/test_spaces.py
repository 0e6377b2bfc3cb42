from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple

from apexrl.client.observations import named_observation
from apexrl.envs import env_spec, flatten_observation
from apexrl.envs.action_spaces import action_spec
from apexrl.envs.spaces import observation_leaves
from apexrl.errors import SpecError
from apexrl.spec import Field

PIXELS = Box(0, 255, (8, 8), np.uint8)


def test_nested_dict() -> None:
    space = Dict(a=Dict(b=PIXELS, c=Discrete(4, start=2)), d=Box(-1.0, 1.0, (3,), np.float64), e=MultiBinary(5))
    spec = env_spec(space, Discrete(3), stack=2)
    assert spec.observation == {
        "observation/a/b": Field((8, 8), "uint8"),
        "observation/a/c": Field((), "int64"),
        "observation/d": Field((3,), "float32"),
        "observation/e": Field((5,), "int8"),
    }
    assert spec.categories == {"observation/a/c": 4}
    assert spec.stack == 2
    batch = gym.vector.utils.batch_space(space, 6)
    batch.seed(0)
    sample = batch.sample()
    flat = flatten_observation(observation_leaves(space), sample)
    assert {name: (array.shape[1:], str(array.dtype)) for name, array in flat.items()} == {
        name: (field.shape, field.dtype) for name, field in spec.observation.items()
    }
    np.testing.assert_array_equal(flat["observation/a/c"], sample["a"]["c"] - 2)
    assert flat["observation/a/b"] is sample["a"]["b"]  # no copy where none is needed


def test_keys_may_have_slashes() -> None:
    space = Dict({"walker/joints": Box(-1.0, 1.0, (2,), np.float32), "walker": Dict(height=Discrete(3))})
    leaves = observation_leaves(space)
    seen = {"walker/joints": np.ones((1, 2), np.float32), "walker": {"height": np.array([2])}}
    flat = flatten_observation(leaves, seen)
    assert {name: array.tolist() for name, array in flat.items()} == {
        "observation/walker/joints": [[1.0, 1.0]],
        "observation/walker/height": [2],
    }
    single = {"walker/joints": np.ones(2, np.float32), "walker": {"height": 2}}
    assert named_observation(env_spec(space, Discrete(2)), single).keys() == flat.keys()


def test_actions() -> None:
    assert action_spec(Discrete(4, start=-2)).n == 4
    box = action_spec(Box(np.array([-1.0, 0.0]), np.array([1.0, 2.0]), dtype=np.float64))
    assert (box.shape, box.dtype, box.discrete) == ((2,), "float32", False)
    np.testing.assert_array_equal(box.low, np.array([-1.0, 0.0], np.float32))


def test_bounds_that_float32_has_not_lie_inside_the_box() -> None:
    """Else an action at a bound is none of the space's, which environments check."""
    space = Box(np.array([-0.1, -np.inf, 0.3]), np.array([0.1, np.inf, 1e300]), dtype=np.float64)
    spec = action_spec(space)
    for bound in (spec.low, spec.high):
        assert bound is not None
        assert bound.dtype == np.float32
        assert space.contains(bound)
    assert spec.high is not None
    np.testing.assert_allclose(spec.high, [0.1, np.inf, np.finfo(np.float32).max], rtol=1e-7)


def test_codes_far_above_the_least_do_not_wrap() -> None:
    space = Box(-30_000, 30_000, (5, 5), np.int16)
    (leaf,) = observation_leaves(space)
    seen = flatten_observation([leaf], np.full((1, 5, 5), 20_000, np.int16))["observation"]
    assert (leaf.field.dtype, leaf.categories, seen.max()) == ("int32", 60_001, 50_000)
    rows = {"observation": np.zeros((1, 5, 5), np.int32)}
    leaf.store(np.full((5, 5), 20_000, np.int16), rows, 0)
    assert rows["observation"].max() == 50_000


@pytest.mark.parametrize(
    "space",
    [
        PIXELS,
        Box(-1.0, 1.0, (3,), np.float64),
        Box(-5, 5, (4,), np.int32),
        Dict(x=Box(-1.0, 1.0, (2, 2), np.float32), action_mask=MultiBinary(5)),
        Tuple((MultiBinary(5), Discrete(4), MultiDiscrete([3, 4]))),
    ],
)
def test_plain_arrays_written_as_they_are_equal_stored_ones(space: gym.Space[Any]) -> None:
    rng = np.random.default_rng(0)
    for leaf in observation_leaves(space):
        assert np.dtype(leaf.field.dtype) in leaf.plain()
        for dtype in leaf.plain():
            value = (3.0 * rng.standard_normal(leaf.field.shape)).astype(dtype)
            stored, written = (np.zeros((2, *leaf.field.shape), leaf.field.dtype) for _ in range(2))
            observation: Any = value
            for key in reversed(leaf.path):
                observation = {key: observation}
            leaf.store(observation, {leaf.name: stored}, 1)
            written[1] = value
            np.testing.assert_array_equal(stored, written)


def test_arrays_that_are_changed_when_stored_are_not_plain() -> None:
    for space in (Discrete(4, start=2), Text(5), Box(-9, 1000, (3, 3), np.int16)):
        assert all(not leaf.plain() for leaf in observation_leaves(space))


def test_several_choices_at_once() -> None:
    several = action_spec(MultiDiscrete([2, 3], start=[1, -1]))
    assert (several.shape, several.dtype, several.nvec, several.starts) == ((2,), "int64", (2, 3), (1, -1))
    assert not several.discrete
    assert not several.box
    switches = action_spec(MultiBinary(3))
    assert (switches.shape, switches.nvec, switches.starts) == ((3,), (2, 2, 2), (0, 0, 0))


@pytest.mark.parametrize(
    "space",
    [Discrete(4, start=-2), MultiDiscrete([2, 3], start=[1, -1]), MultiDiscrete([2, 3]), MultiBinary(3)],
    ids=repr,
)
def test_an_environment_gets_actions_as_it_counts_them(space: gym.Space[Any]) -> None:
    spec = action_spec(space)
    combinations = np.array(list(np.ndindex(spec.nvec or (spec.n,))))
    counted = spec.as_counted(combinations if spec.nvec else combinations[:, 0])
    assert len(counted) > 3
    assert all(space.contains(action) for action in counted)
    assert counted.dtype == np.int64
    assert (combinations >= 0).all()


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (OneOf([Box(0.0, 1.0)]), Discrete(2), "observation is a OneOf space"),
        (Dict(inner=Dict(any=OneOf([PIXELS]))), Discrete(2), "observation/inner/any is a OneOf space"),
        (Dict(**{"a/b": PIXELS, "a": Dict(b=PIXELS)}), Discrete(2), "two entries that are called 'observation/a/b'"),
        (Dict(**{"a/length": PIXELS, "a": Text(3)}), Discrete(2), "two entries that are called 'observation/a/length'"),
        (Sequence(Dict(**{"a/b": Box(0.0, 1.0)})), Discrete(2), "keys in elements of a Sequence must be without '/'"),
        (Dict({3: PIXELS}), Discrete(2), "has the key 3"),
        (Dict(), Discrete(2), "holds no entry"),
        (Box(0.0, 1.0, (0,)), Discrete(2), "observation is Box"),
        (PIXELS, MultiDiscrete([[2, 3], [4, 5]]), "action space is MultiDiscrete"),
        (PIXELS, MultiBinary([2, 2]), "action space is MultiBinary"),
        (PIXELS, Box(0, 5, (2,), np.int32), "action space is Box"),
    ],
)
def test_unsupported_spaces_are_named(observation: gym.Space[Any], action: gym.Space[Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        env_spec(observation, action)
