"""Observations as environments have them: tuples, texts, sequences, graphs, and dicts of all."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, OneOf, Sequence, Text, Tuple

from apexrl.client.observations import named_observation
from apexrl.config import EnvConfig
from apexrl.envs import env_spec, make_vector
from apexrl.envs.lockstep import LoopRows
from apexrl.envs.native_rows import NativeRows
from apexrl.envs.spaces import observation_leaves
from apexrl.errors import EnvError, SpecError
from apexrl.run.spec_json import spec_from_json, spec_to_json
from apexrl.spec import Field
from space_envs import STEPS, Bag, Glyphs, Linked, Long, Pair, Shows, Told

ENVS: tuple[type[Shows], ...] = (Told, Bag, Linked, Glyphs)


def test_fields_of_a_dict_such_as_nethacks() -> None:
    spec = env_spec(Glyphs.observation_space, Discrete(3))
    assert spec.observation == {
        "observation/blstats": Field((5,), "int64"),
        "observation/colors": Field((3, 3), "int64"),
        "observation/glyphs": Field((9, 12), "int16"),
        "observation/inventory": Field((128, 16), "uint8", ragged=True),
        "observation/inventory/length": Field((), "int32"),
        "observation/message": Field((40,), "uint8", ragged=True),
        "observation/message/length": Field((), "int32"),
        "observation/where/0": Field((), "int64"),
        "observation/where/1": Field((2,), "int8"),
    }
    assert spec.categories == {
        "observation/colors": 4,
        "observation/glyphs": 5977,
        "observation/inventory": 256,
        "observation/message": 256,
        "observation/where/0": 3,
    }


def test_fields_of_a_graph_and_of_a_sequence() -> None:
    graph = env_spec(Linked.observation_space, Discrete(3))
    assert {name: field.shape for name, field in graph.observation.items()} == {
        "observation/nodes": (128, 4),
        "observation/nodes/length": (),
        "observation/edges": (128,),
        "observation/edges/length": (),
        "observation/edge_links": (128, 2),
        "observation/edge_links/length": (),
    }
    bag = env_spec(Bag.observation_space, Discrete(3))
    assert bag.observation["observation/kind"] == Field((128,), "int64", ragged=True)
    assert (bag.starts, bag.categories) == ({"observation/kind": 1}, {"observation/kind": 3})
    assert {padded.of for padded in bag.padded.values()} == {"observation"}


@pytest.mark.parametrize("env", ENVS, ids=lambda env: env.__name__)
def test_a_spec_goes_through_json(env: type[Shows]) -> None:
    spec = env_spec(env.observation_space, Pair().action_space)
    again = spec_from_json(spec_to_json(spec))
    assert (again.observation, again.padded, again.categories) == (spec.observation, spec.padded, spec.categories)
    assert again.action.parts == spec.action.parts


@pytest.mark.parametrize(
    "change",
    [
        {"padded": {"observation/kind": ["rope", "observation"]}},
        {"padded": {"observation/kind": ["sequence", "elsewhere"]}},
        {"padded": {"observation/weight/length": ["text", "observation/weight"]}},
    ],
)
def test_a_false_spec_is_refused(change: dict[str, Any]) -> None:
    values = spec_to_json(env_spec(Bag.observation_space, Discrete(3)))
    with pytest.raises(ValueError, match=r"is said to be|ragged needs"):
        spec_from_json({**values, **change})


def test_parts_that_are_not_the_actions_are_refused() -> None:
    values = spec_to_json(env_spec(Pair.observation_space, Pair().action_space))
    for parts in ([[["lever"], [7], "int64", True]], [[["a"] * 99, [1], "int64", True]], [[[], [2], "int64", True]]):
        with pytest.raises(ValueError, match="part"):
            spec_from_json({**values, "action": {**values["action"], "parts": parts}})


@pytest.mark.parametrize("env", ENVS, ids=lambda env: env.__name__)
def test_rows_are_what_the_environment_shows(env: type[Shows]) -> None:
    """Single environments, those in threads, a vectorised form and a client name one observation alike."""
    loop = make_vector(EnvConfig(env=env), 2, seed=3)
    threads = make_vector(EnvConfig(env=env), 2, seed=3, vector="threads")
    native = NativeRows(gym.vector.SyncVectorEnv([env, env]), "native")
    seeds = [int(s) for s in np.random.SeedSequence(3).generate_state(2, np.uint32)]
    alone = env()
    raw, _ = alone.reset(seed=seeds[0])
    rows = [loop.reset(), threads.reset(), native.reset(seeds)]
    for _ in range(STEPS):
        for one in rows:
            assert one.keys() == loop.spec.observation.keys()
            for name, array in one.items():
                np.testing.assert_array_equal(array, rows[0][name])
                assert array.dtype == loop.spec.observation[name].dtype
        for name, array in named_observation(loop.spec, raw).items():
            np.testing.assert_array_equal(array[0], rows[0][name][0])
        action = np.array([1, 2])
        native.send(action, np.zeros(2, np.bool_))
        later = native.receive()
        assert later is not None
        stepped = threads.step(action)
        assert stepped.which is None or len(stepped.which) == 2
        rows = [loop.step(action).observation, stepped.observation, later.observation]
        raw, *_ = alone.step(1)
    for vector in (loop, threads, native):
        vector.close()


def test_what_is_stored_of_a_text() -> None:
    vector = make_vector(EnvConfig(env=Told), 1, seed=0)
    seen = vector.reset()
    vector.close()
    length = int(seen["observation/mission/length"][0])
    assert bytes(seen["observation/mission"][0, :length]).decode().startswith("go to the ")
    assert not seen["observation/mission"][0, length:].any()


def test_a_value_that_is_too_long_is_an_error() -> None:
    vector = make_vector(EnvConfig(env=Long, max_sequence_length=3), 1, seed=0)
    vector.reset()
    vector.step(np.array([0]))
    vector.step(np.array([0]))
    with pytest.raises(EnvError, match="observation is 4 long, and at most 3 may be: raise --max-seq"):
        vector.step(np.array([0]))
    vector.close()


def test_a_value_that_is_too_long_is_cut_and_counted() -> None:
    vector = make_vector(EnvConfig(env=Long, max_sequence_length=3, cut_long_sequences=True), 1, seed=0)
    vector.reset()
    for _ in range(2):
        for _ in range(STEPS - 1):
            stepped = vector.step(np.array([0]))
            assert not stepped.episodes
        stepped = vector.step(np.array([0]))
        (episode,) = stepped.episodes
        assert episode.metrics == {"cut_off": sum(range(1, STEPS - 1))}  # of lengths 4 … STEPS + 1
        assert stepped.observation["observation/length"][0] == 3
        vector.step(np.array([0]))
    vector.close()


class Missions(gym.Space[str]):
    """A space of one's own, such as MiniGrid's."""

    def sample(self, *given: Any, **masks: Any) -> str:
        return "open the red door"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


def test_a_space_of_strings_is_a_text() -> None:
    spec = env_spec(Dict(mission=Missions()), Discrete(2))
    assert spec.observation["observation/mission"] == Field((128,), "uint8", ragged=True)
    assert spec.padded["observation/mission"].kind == "text"


def test_a_text_has_room_for_its_longest_value() -> None:
    (leaf,) = observation_leaves(Text(5, charset="aé"))
    assert leaf.field.shape == (10,)
    with pytest.raises(SpecError, match="whose charset is empty"):
        observation_leaves(Text(5, charset=""))


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (Text(5), 7, "observation is no text"),
        (Text(5), "abcdefg", "observation is 7 long, and at most 5 may be: its space"),
        (Sequence(Discrete(3)), (1, 3), "observation holds 3; it must be between 0 and 2"),
        (Sequence(Box(0.0, 1.0, (2,))), (np.zeros(3),), "has elements of shape"),
        (Sequence(Box(0, 255, (1,), np.uint8)), (np.array([300]),), "holds int64 values that uint8 does not hold"),
        (Linked.observation_space, {"nodes": np.zeros((1, 4)), "edges": None, "edge_links": None}, ""),
        (
            Linked.observation_space,
            {"nodes": np.zeros((1, 4)), "edges": np.zeros(1, int), "edge_links": np.array([[0, 1]])},
            "names the node 1, and there are 1",
        ),
    ],
    ids=str,
)
def test_values_that_do_not_fit_their_space(space: gym.Space[Any], value: Any, message: str) -> None:
    class Broken(Shows):
        observation_space = space

        def shown(self, secret: int) -> Any:
            return value

    rows = LoopRows([Broken()], "broken")
    if message:
        with pytest.raises(EnvError, match=message):
            rows.reset([0])
    else:
        assert rows.reset([0])["observation/nodes/length"][0] == 1


def test_spaces_that_are_refused() -> None:
    with pytest.raises(SpecError, match="observation/x is a OneOf space"):
        env_spec(Dict(x=OneOf([Discrete(2), Discrete(3)])), Discrete(2))
    with pytest.raises(SpecError, match="a Sequence of sequences is not supported"):
        env_spec(Sequence(Sequence(Discrete(2))), Discrete(2))


def test_multi_discrete_counts_from_its_smallest_start() -> None:
    spec = env_spec(Tuple([MultiDiscrete([2, 5], start=[3, -1])]), Discrete(2))
    assert (spec.starts, spec.categories) == ({"observation/0": -1}, {"observation/0": 6})
