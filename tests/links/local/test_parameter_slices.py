from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexrl.errors import ConfigError
from apexrl.links.local.parameter_slices import ALIGNMENT, ParameterSlices
from apexrl.protocols import Place

SIZES = st.lists(st.integers(1, 40).map(lambda lines: 16 * lines), min_size=1, max_size=4)


def vectors_of(sizes: list[int]) -> dict[str, int]:
    named: dict[str, int] = {}
    for number, size in enumerate(sizes):
        named |= {f"g{number}/online": size, f"g{number}/optimizer/square": size, f"g{number}/optimizer/steps": 1}
    return named


@given(SIZES, st.data())
def test_shards_share_out_every_value_once_and_evenly(sizes: list[int], data: st.DataObject) -> None:
    blocks = sum(-(-size // ALIGNMENT) for size in sizes)
    count = data.draw(st.integers(1, blocks))
    shards = ParameterSlices(vectors_of(sizes), {}, count)
    owners = {f"g{number}": np.zeros(size, np.int64) for number, size in enumerate(sizes)}
    for shard in range(count):
        parts = shards.parts(shard)
        assert parts
        assert shards.size(shard) == sum(part.stop - part.start for part in parts)
        for part in parts:
            assert part.start % ALIGNMENT == 0
            owners[part.group][part.where] += 1
    assert all((owned == 1).all() for owned in owners.values())
    held = [sum(-(-part.size // ALIGNMENT) for part in shards.parts(shard)) for shard in range(count)]
    assert max(held) - min(held) <= 1


def test_they_know_which_vectors_are_cut_and_which_groups_have_a_target() -> None:
    sizes = vectors_of([64, 64]) | {"g1/target": 64}
    shards = ParameterSlices(sizes, {}, 2)
    assert shards.names("g1") == ["online", "optimizer/square", "optimizer/steps", "target"]
    assert shards.targets == ("g1",)
    assert shards.sliced("g0", "optimizer/square")
    assert not shards.sliced("g0", "optimizer/steps")


def test_weights_are_named_views_of_the_vectors() -> None:
    places = {"w": Place("q", 16, (2, 3)), "b": Place("q", 0, ())}
    shards = pickle.loads(pickle.dumps(ParameterSlices(vectors_of([32]) | {"q/online": 32}, places, 1)))
    vector = np.arange(32, dtype=np.float32)
    named = shards.named({"q": vector})
    np.testing.assert_array_equal(named["w"], [[16, 17, 18], [19, 20, 21]])
    assert named["b"].shape == ()
    vector[:] = 7
    assert named["b"] == 7
    assert (named["w"] == 7).all()


@pytest.mark.parametrize("count", [0, 3])
def test_more_servers_than_pieces_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"--parameter-servers {count} must be between 1 and 2"):
        ParameterSlices(vectors_of([128]), {}, count)
