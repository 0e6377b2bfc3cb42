from __future__ import annotations

import pickle

import numpy as np
import pytest

from apexrl.errors import SpecError
from apexrl.links.local.parameter_slices import ONLINE, TARGET, Floats, ParameterSlices
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.protocols import Place

SIZES = {
    "q/online": 192,
    "q/target": 192,
    "q/optimizer/square": 192,
    "q/optimizer/steps": 1,
    "log/online": 16,
    "log/optimizer/square": 16,
    "log/optimizer/steps": 1,
}
PLACES = {"a": Place("q", 0, (100,)), "b": Place("q", 112, (8, 10)), "log": Place("log", 0, ())}


def made(count: int) -> ShardedParameters:
    """One that crossed a process."""
    original = ShardedParameters(ParameterSlices(SIZES, PLACES, count))
    return pickle.loads(pickle.dumps(original))  # type: ignore[no-any-return]


def numbered(offset: float) -> dict[str, Floats]:
    return {g: offset + np.arange(SIZES[f"{g}/online"], dtype=np.float32) for g in ("q", "log")}


def publish(parameters: ShardedParameters, shard: int, offset: float, version: int, name: str = ONLINE) -> None:
    memory = parameters.memory(shard)
    for part in parameters.shards.parts(shard):
        if f"{part.group}/{name}" in memory.vectors:
            memory.vectors[f"{part.group}/{name}"][:] = numbered(offset)[part.group][part.where]
    memory.version = version
    memory.publish(name)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_whole_weights_are_put_together_by_name_once_all_have_published(count: int) -> None:
    parameters = made(count)
    for shard in range(count):
        assert parameters.latest() is None
        publish(parameters, shard, 5.0, 1)
    newest = parameters.latest()
    assert newest is not None
    version, weights = newest
    assert version == parameters.version == 1
    np.testing.assert_array_equal(weights["a"], 5 + np.arange(100))
    np.testing.assert_array_equal(weights["b"].ravel(), 5 + np.arange(112, 192))
    assert weights["log"] == 5
    assert parameters.latest(newer_than=1) is None


def test_the_version_is_that_of_the_shard_furthest_behind() -> None:
    parameters = made(2)
    publish(parameters, 0, 0.0, 4)
    publish(parameters, 1, 0.0, 3)
    assert parameters.version == 3
    publish(parameters, 1, 0.0, 9)
    newest = parameters.latest(newer_than=3)
    assert newest is not None
    assert newest[0] == 4
    assert [parameters.memory(shard).published_version() for shard in (0, 1)] == [4, 9]


def test_what_was_read_is_fresh_and_stays() -> None:
    parameters = made(2)
    for shard in (0, 1):
        publish(parameters, shard, 1.0, 1)
    first = parameters.latest()
    for shard in (0, 1):
        publish(parameters, shard, 2.0, 2)
    assert first is not None
    np.testing.assert_array_equal(first[1]["a"], 1 + np.arange(100))


def test_pulling_takes_newer_slices_alone() -> None:
    parameters = made(2)
    into, versions = parameters.empty(), [0, 0]
    assert not parameters.pull(versions, into)
    publish(parameters, 1, 3.0, 7)
    assert parameters.pull(versions, into)
    assert versions == [0, 7]
    (part,) = (part for part in parameters.shards.parts(0) if part.group == "q")
    assert (into["q"][part.where] == 0).all()
    np.testing.assert_array_equal(into["q"][part.stop :], numbered(3.0)["q"][part.stop :])
    assert not parameters.pull(versions, into)


def test_targets_go_their_own_way_for_the_groups_that_have_one() -> None:
    parameters = made(2)
    into, versions = parameters.empty(TARGET), [0, 0]
    assert into.keys() == {"q"}
    for shard in (0, 1):
        publish(parameters, shard, 8.0, 2, TARGET)
    assert parameters.pull(versions, into, TARGET)
    np.testing.assert_array_equal(into["q"], numbered(8.0)["q"])
    assert parameters.version == 0
    assert parameters.memory(0).published() is None


def test_versions_never_go_back() -> None:
    parameters = made(1)
    publish(parameters, 0, 0.0, 2)
    with pytest.raises(SpecError, match="version 2 must be larger than the newest, 2"):
        publish(parameters, 0, 1.0, 2)


def test_all_vectors_are_collected_where_the_agent_has_them() -> None:
    parameters = made(3)
    expected = {name: np.zeros(size, np.float32) for name, size in SIZES.items()}
    for number, (name, array) in enumerate(expected.items()):
        array[:] = 1000 * number + np.arange(len(array))
        group = name.partition("/")[0]
        for shard in range(3):
            for part in parameters.shards.parts(shard):
                if part.group == group:
                    own = array[part.where] if len(array) > 1 else array
                    parameters.memory(shard).vectors[name][:] = own
    found = {name: np.zeros(size, np.float32) for name, size in SIZES.items()}
    parameters.collect(found)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_shard_remembers_where_it_was() -> None:
    parameters = made(2)
    memory = parameters.memory(1)
    assert not memory.filled
    assert not memory.torn
    memory.fill()
    memory.version, memory.gradient_lag = 2**40, 3.0
    memory.begin_update()
    other = pickle.loads(pickle.dumps(parameters)).memory(1)
    assert other.filled
    assert other.torn
    assert other.version == 2**40
    memory.end_update()
    assert not other.torn
    assert parameters.gradient_lag == 1.5  # of both shards
    assert not parameters.all_ended
    for shard in (0, 1):
        parameters.memory(shard).end()
    assert parameters.all_ended
    other.end(False)
    assert not parameters.all_ended
